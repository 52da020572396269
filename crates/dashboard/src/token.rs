//! The secret in the address of a server: whoever has it may read.

use lockstep_platform::Entropy;
use std::fmt::Write;

/// Random bytes of a token.
const NUM_BYTES: usize = 16;

/// Most characters of a chosen token.
const MAX_CHARS: usize = 128;
/// A chosen token with fewer characters may be guessed.
const SAFE_CHARS: usize = 16;

/// A token: 32 random hexadecimal digits, or chosen characters.
#[derive(Clone)]
pub struct Token {
    text: String,
}

impl Token {
    /// New random token.
    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; NUM_BYTES];
        entropy.fill(&mut bytes);
        let mut text = String::with_capacity(2 * NUM_BYTES);
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Self { text }
    }

    /// A chosen token, for scripts that know it in advance. Its characters need no escapes in an
    /// address or a cookie; `None` for others.
    pub fn chosen(text: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_token = (1..=MAX_CHARS).contains(&text.len()) && text.chars().all(is_plain);
        is_token.then(|| Self { text: text.to_owned() })
    }

    /// Whether the token is so short that it may be guessed.
    pub fn is_short(&self) -> bool {
        self.text.len() < SAFE_CHARS
    }

    /// The characters. They belong into the printed address and the cookie, nowhere else.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a text is the token. The time does not depend on where they differ.
    pub fn is(&self, text: &str) -> bool {
        let (own, other) = (self.text.as_bytes(), text.as_bytes());
        let differences = own.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
        own.len() == other.len() && std::hint::black_box(differences) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let world = lockstep_platform::real();
        let [token, other] = [0, 1].map(|_| Token::random(world.entropy()));
        assert_eq!(token.as_str().len(), 32);
        assert!(token.is(token.as_str()) && !token.is(other.as_str()));
        assert!(!token.is("") && !token.is(&token.as_str()[1..]));
        assert!(!token.is(&(token.as_str().to_owned() + "0")));
        assert_eq!(format!("{token:?}"), "Token(..)");
        let chosen = Token::chosen("my-token_1.0").unwrap();
        assert!(chosen.is("my-token_1.0") && chosen.is_short() && !token.is_short());
        for bad in ["", "a b", "a;b", "a=b", "a&b", "a%20", "a\r\nb", "ü", &"a".repeat(129)] {
            assert!(Token::chosen(bad).is_none(), "{bad:?}");
        }
    }
}
