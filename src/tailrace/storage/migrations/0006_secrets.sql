-- Secrets are encrypted, session ids hashed: by `vault.encrypt_existing`, in the transaction of this step. The version says
-- so, and keeps older servers from taking ciphertext for keys.
SELECT 1;
