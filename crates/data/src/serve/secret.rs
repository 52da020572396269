//! Shared secret of data server and workers, and the proof of knowing it.
//!
//! The secret itself is never sent. Each side sends a nonce of 32 random bytes and answers with the
//! keyed BLAKE3 hash of its role and both nonces. Fresh nonces prevent replays. Hashes are compared
//! in constant time.

use std::path::Path;

use lockstep_auth::ticket::{SecretFileError, read_secret_file};
use lockstep_platform::World;

use crate::error::DataError;

pub use lockstep_auth::ticket::{SECRET as VARIABLE, SECRET_FILE as FILE_VARIABLE};

/// Minimum length of a secret.
const MIN_CHARS: usize = 16;

/// Remedy for a missing secret.
const HINT: &str =
    "set LOCKSTEP_SECRET for server and workers, or LOCKSTEP_SECRET_FILE to a file that holds it";

/// Random bytes of one handshake.
pub type Nonce = [u8; 32];

/// Key derived from the secret.
#[derive(Clone)]
pub struct Key([u8; 32]);

/// Role of the proving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Client of the data server.
    Worker,
    /// Data server.
    Server,
}

impl Key {
    /// Key of the secret in this process's environment.
    pub fn find(world: &World) -> Result<Self, DataError> {
        let get = |name| world.host().env(name).filter(|value| !value.trim().is_empty());
        let secret = match (get(VARIABLE), get(FILE_VARIABLE)) {
            (Some(secret), _) => secret,
            (None, Some(path)) => read_private(world, Path::new(&path))?,
            (None, None) => String::new(),
        };
        Self::new(&secret)
    }

    /// Key of a secret.
    pub fn new(secret: &str) -> Result<Self, DataError> {
        let secret = secret.trim();
        let num_chars = secret.chars().count();
        if num_chars < MIN_CHARS {
            let why = match num_chars {
                0 => String::new(),
                _ => format!(
                    ", and the one given has {num_chars} of at least {MIN_CHARS} characters"
                ),
            };
            return Err(DataError::Secret { why, hint: HINT });
        }
        Ok(Self(blake3::derive_key(
            "lockstep data server, shared secret, version 1",
            secret.as_bytes(),
        )))
    }

    /// Proof of knowing the secret.
    pub fn proof(&self, role: Role, worker: &Nonce, server: &Nonce) -> [u8; 32] {
        self.hash(role, worker, server).into()
    }

    /// Whether a proof is valid.
    pub fn accepts(&self, proof: [u8; 32], role: Role, worker: &Nonce, server: &Nonce) -> bool {
        // Hashes compare in constant time.
        self.hash(role, worker, server) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, role: Role, worker: &Nonce, server: &Nonce) -> blake3::Hash {
        let role = match role {
            Role::Worker => b"worker",
            Role::Server => b"server",
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(role).update(worker).update(server);
        hasher.finalize()
    }
}

/// Reads a secret file, which other users must not be able to read.
fn read_private(world: &World, path: &Path) -> Result<String, DataError> {
    read_secret_file(world, path).map_err(|error| match error {
        SecretFileError::OpenToOthers { path } => {
            let why = format!(
                ", and {FILE_VARIABLE} = {path} can be read by other users (chmod 600 {path})"
            );
            DataError::Secret { why, hint: HINT }
        }
        SecretFileError::File(error) => error.into(),
    })
}

/// Fresh random bytes.
pub(super) fn nonce(world: &World) -> Nonce {
    let mut nonce = [0; 32];
    world.entropy().fill(&mut nonce);
    nonce
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use lockstep_platform::{ScratchDir, real};

    use super::*;

    #[test]
    fn a_file_that_others_can_read_holds_no_secret() {
        let world = real();
        let scratch = ScratchDir::new(&world, "secret").unwrap();
        let path = scratch.path().join("secret");
        world.files().write_atomic(&path, b"correct horse battery").unwrap();
        let allow = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        allow(0o640).unwrap();
        let complaint = read_private(&world, &path).unwrap_err().to_string();
        assert!(complaint.contains(&format!("chmod 600 {}", path.display())), "{complaint}");
        allow(0o600).unwrap();
        assert_eq!(read_private(&world, &path).unwrap(), "correct horse battery");
    }

    #[test]
    fn a_proof_holds_for_its_secret_role_and_conversation_only() {
        let key = Key::new("correct horse battery").unwrap();
        let other = Key::new("correct horse batterz").unwrap();
        let (a, b) = ([1; 32], [2; 32]);
        let proof = key.proof(Role::Worker, &a, &b);
        assert!(key.accepts(proof, Role::Worker, &a, &b));
        assert!(!other.accepts(proof, Role::Worker, &a, &b));
        assert!(!key.accepts(proof, Role::Server, &a, &b), "a proof cannot be sent back");
        assert!(!key.accepts(proof, Role::Worker, &b, &a));
    }

    #[test]
    fn a_missing_or_short_secret_is_refused_in_one_line() {
        let complaint = |secret| Key::new(secret).err().unwrap().to_string();
        assert_eq!(
            complaint(" \n"),
            "a data server needs a shared secret: set LOCKSTEP_SECRET for server and workers, or \
             LOCKSTEP_SECRET_FILE to a file that holds it"
        );
        assert!(complaint("hunter2").contains("has 7 of at least 16 characters"));
        assert!(Key::new("0123456789abcdef\n").is_ok());
    }
}
