"""The tests of Tailrace. `make test` runs all of them; CONTRIBUTING.md says which part proves what."""
