//! What lets a rank into a run, and where it comes from.
//!
//! A secret is 32 random bytes, written as 64 hexadecimal digits. Nothing shorter is taken: whoever
//! overhears a greeting can try guesses against it at leisure, which is hopeless against 32 random
//! bytes and quick against a word that somebody made up.

use std::fmt;
use std::path::Path;

use lockstep_platform::{FileError, World};

/// The variable that holds the secret.
pub const SECRET: &str = "LOCKSTEP_SECRET";

/// The variable that names a file with the secret.
pub const SECRET_FILE: &str = "LOCKSTEP_SECRET_FILE";

/// The variable that holds the run's name.
pub const RUN: &str = "LOCKSTEP_RUN";

/// The variable by which a launcher passes the secret that it has made for one run. A person's own
/// secret stays where it is, since other programs, such as data servers, may know it too.
pub const TICKET: &str = "LOCKSTEP_TICKET";

/// How to get a secret, for messages.
const HOW: &str = "make one with `lockstep rendezvous --new-secret` and give it to all workers";

/// 32 random bytes that all ranks of a run know and nobody else. It is never printed by accident.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new one.
    pub fn new(world: &World) -> Self {
        let mut bytes = [0; 32];
        world.entropy().fill(&mut bytes);
        Self(bytes)
    }

    /// Reads 64 hexadecimal digits; nothing if the text is something else.
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

    /// The 64 digits, for whoever must pass them on.
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

/// What lets a rank into a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// What all ranks of the run know.
    pub secret: Secret,
    /// The run's name, which tells apart runs that use one secret; may be empty.
    pub run: String,
}

impl Ticket {
    /// For a new run that nobody else can be part of.
    pub fn new(world: &World) -> Self {
        Self { secret: Secret::new(world), run: String::new() }
    }

    /// Reads `LOCKSTEP_TICKET`, else `LOCKSTEP_SECRET`, or the file that `LOCKSTEP_SECRET_FILE`
    /// names, and `LOCKSTEP_RUN`. The error says what is wrong and what would be right.
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
                return Err(format!("neither {SECRET} nor {SECRET_FILE} is set; {HOW}"));
            }
            (None, Some(text), None) => (text, SECRET.to_owned()),
            (None, None, Some(path)) => {
                let text = read_secret_file(world, Path::new(&path)).map_err(|e| e.to_string())?;
                (text, format!("{SECRET_FILE} = {path}"))
            }
        };
        // What was found is not repeated: it may be nearly the secret.
        let secret = Secret::parse(&text)
            .ok_or_else(|| format!("{from} does not hold 64 hexadecimal digits; {HOW}"))?;
        Ok(Self { secret, run })
    }

    /// The variables by which a process that is started gets this ticket.
    ///
    /// The environment of a process can be read by its own user only, who could read its memory
    /// just as well.
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
    fn a_secret_is_new_every_time_and_survives_being_written_down() {
        let (one, other) = (Secret::new(&real()), Secret::new(&real()));
        assert_ne!(one, other);
        assert_eq!(Secret::parse(&format!(" {}\n", one.to_hex())), Some(one));
        assert_eq!(Secret::parse(&one.to_hex().to_uppercase()), Some(one));
    }

    #[test]
    fn a_secret_is_not_printed_by_accident() {
        let ticket = Ticket::new(&real());
        let text = format!("{ticket:?} {:?}", ticket.secret);
        assert!(!text.contains(&ticket.secret.to_hex()[..8]), "{text}");
    }

    #[test]
    fn anything_but_64_digits_is_no_secret() {
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
