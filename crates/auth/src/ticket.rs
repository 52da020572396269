//! The secret of a run and the environment variables that carry it.
//!
//! A secret is 32 random bytes, written as 64 hexadecimal digits. Shorter secrets are refused: a
//! recorded handshake allows offline guessing, which is hopeless against 32 random bytes and quick
//! against a password.

use std::fmt;
use std::path::Path;

use lockstep_platform::{FileError, World};

/// Environment variable with the secret.
pub const SECRET: &str = "LOCKSTEP_SECRET";

/// Environment variable with the path of a file that contains the secret.
pub const SECRET_FILE: &str = "LOCKSTEP_SECRET_FILE";

/// Environment variable with the name of the run.
pub const RUN: &str = "LOCKSTEP_RUN";

/// Environment variable with the secret that a launcher creates for one run. It does not replace
/// [`SECRET`], which other programs, such as data servers, may share.
pub const TICKET: &str = "LOCKSTEP_TICKET";

/// How to create a secret, for messages.
const HINT: &str = "make one with `lockstep rendezvous --new-secret` and give it to all workers";

/// 32 random bytes that only the ranks of a run know. `Debug` does not print them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Creates a random secret.
    pub fn new(world: &World) -> Self {
        let mut bytes = [0; 32];
        world.entropy().fill(&mut bytes);
        Self(bytes)
    }

    /// Parses 64 hexadecimal digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let (pairs, []) = text.trim().as_bytes().as_chunks::<2>() else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }

    /// The secret as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        let (high, low) = self.0.split_first_chunk().expect("32 bytes are 16 and 16");
        let low = low.try_into().expect("32 bytes are 16 and 16");
        format!("{:032x}{:032x}", u128::from_be_bytes(*high), u128::from_be_bytes(low))
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Credentials of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Secret that all ranks of the run share.
    pub secret: Secret,
    /// Name of the run; distinguishes runs that share a secret. May be empty.
    pub run: String,
}

impl Ticket {
    /// Credentials of a new run with a secret of its own.
    pub fn new(world: &World) -> Self {
        Self { secret: Secret::new(world), run: String::new() }
    }

    /// Reads `LOCKSTEP_TICKET`, else `LOCKSTEP_SECRET`, or the file that `LOCKSTEP_SECRET_FILE`
    /// names, and `LOCKSTEP_RUN`. The error names the variable and a fix.
    pub fn from_env(world: &World) -> Result<Self, String> {
        let get = |name: &str| {
            let value = world.host().env(name)?;
            (!value.trim().is_empty()).then(|| value.trim().to_owned())
        };
        let run = get(RUN).unwrap_or_default();
        let (text, from) = match (get(TICKET), get(SECRET), get(SECRET_FILE)) {
            (Some(text), ..) => (text, TICKET.to_owned()),
            (None, Some(_), Some(_)) => {
                return Err(format!("{SECRET} and {SECRET_FILE} are both set; unset one"));
            }
            (None, None, None) => {
                return Err(format!("neither {SECRET} nor {SECRET_FILE} is set; {HINT}"));
            }
            (None, Some(text), None) => (text, SECRET.to_owned()),
            (None, None, Some(path)) => {
                let text = read_secret_file(world, Path::new(&path)).map_err(|e| e.to_string())?;
                (text, format!("{SECRET_FILE} = {path}"))
            }
        };
        // The message does not quote the text: it may be a secret with one typo.
        let secret = Secret::parse(&text)
            .ok_or_else(|| format!("{from} does not hold 64 hexadecimal digits; {HINT}"))?;
        Ok(Self { secret, run })
    }

    /// Whether the environment has a secret, sound or not.
    pub fn is_in_env(world: &World) -> bool {
        let is_set = |name| world.host().env(name).is_some_and(|value| !value.trim().is_empty());
        [TICKET, SECRET, SECRET_FILE].into_iter().any(is_set)
    }

    /// Credentials of a run whose ranks are all on this host: a secret of this user that the first
    /// rank creates in a file that other users cannot access. `LOCKSTEP_RUN` replaces `run`.
    ///
    /// All such runs of a user share the secret; their names keep them apart.
    pub fn of_user(world: &World, run: &str) -> Result<Self, String> {
        let new_secret = Secret::new(world).to_hex();
        let path = world.host().runtime_dir().join("secret");
        let content = world.files().read_or_create_private(&path, new_secret.as_bytes());
        let content = content.map_err(|error| format!("{error}; or set {SECRET}: {HINT}"))?;
        let secret = std::str::from_utf8(&content).ok().and_then(Secret::parse);
        let secret = secret.ok_or_else(|| {
            format!("{} does not hold 64 hexadecimal digits; remove it", path.display())
        })?;
        let own_name = world.host().env(RUN).filter(|name| !name.trim().is_empty());
        let run = own_name.map_or_else(|| run.to_owned(), |name| name.trim().to_owned());
        Ok(Self { secret, run })
    }

    /// Environment variables that pass this ticket to a child process.
    ///
    /// Only the same user can read the environment of a process, and that user can read its memory
    /// as well.
    pub fn to_env(&self) -> [(&'static str, String); 2] {
        [(TICKET, self.secret.to_hex()), (RUN, self.run.clone())]
    }
}

/// Failure to read the file that [`SECRET_FILE`] names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretFileError {
    /// Other users can read the file.
    #[error("{SECRET_FILE} = {path} can be read by other users; try chmod 600 {path}")]
    OpenToOthers {
        /// Path of the file.
        path: String,
    },
    /// The file cannot be read.
    #[error("{SECRET_FILE}: {0}")]
    File(FileError),
}

/// Reads a file with a secret; refuses one that other users can read.
pub fn read_secret_file(world: &World, path: &Path) -> Result<String, SecretFileError> {
    let files = world.files();
    if files.is_open_to_others(path).map_err(SecretFileError::File)? {
        return Err(SecretFileError::OpenToOthers { path: path.display().to_string() });
    }
    files.read_to_string(path).map_err(SecretFileError::File)
}

#[cfg(test)]
mod tests {
    use lockstep_platform::real;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_secret_is_random_and_round_trips_through_hex() {
        let (one, other) = (Secret::new(&real()), Secret::new(&real()));
        assert_ne!(one, other);
        assert_eq!(Secret::parse(&format!(" {}\n", one.to_hex())), Some(one));
        assert_eq!(Secret::parse(&one.to_hex().to_uppercase()), Some(one));
    }

    #[test]
    fn ranks_of_one_user_and_host_share_a_secret_without_variables() {
        let world = real();
        let (one, other) = (Ticket::of_user(&world, "a").unwrap(), Ticket::of_user(&world, "b"));
        assert_eq!(one.secret, other.unwrap().secret);
        assert_eq!(one.run, "a");
        let path = world.host().runtime_dir().join("secret");
        assert_eq!(world.files().is_open_to_others(&path), Ok(false));
        assert_eq!(read_secret_file(&world, &path).unwrap(), one.secret.to_hex());
    }

    #[test]
    fn debug_does_not_print_the_secret() {
        let ticket = Ticket::new(&real());
        let text = format!("{ticket:?} {:?}", ticket.secret);
        assert!(!text.contains(&ticket.secret.to_hex()[..8]), "{text}");
    }

    #[test]
    fn a_text_that_is_not_64_digits_is_refused() {
        let digits = "0123456789abcdef".repeat(4);
        assert!(Secret::parse(&digits).is_some());
        for text in
            ["", "secret", &digits[1..], &digits.replace('7', "g"), &(digits.clone() + "00")]
        {
            assert_eq!(Secret::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_secret_or_refused(text in ".{0,80}") {
            if let Some(secret) = Secret::parse(&text) {
                prop_assert_eq!(secret.to_hex(), text.trim().to_lowercase());
            }
        }
    }
}
