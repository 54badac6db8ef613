"""The bus: commands travel from the processes that serve requests to the one that writes; results and notices return.

messages    commands, results, errors and notices as bytes, each with a stable tag
"""
