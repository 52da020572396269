//! Short lower-case text of an operating-system error.

use std::io;

/// Text of an error without its number and in lower case, to be embedded in a message: `no such
/// file`, `permission denied`, `connection refused`.
pub(crate) fn of(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return "no such file".to_owned();
    }
    let text = error.to_string();
    if error.raw_os_error().is_none() {
        return text;
    }
    let phrase = text.split(" (os error").next().unwrap_or_default();
    let mut letters = phrase.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_lose_their_number_and_capital() {
        assert_eq!(of(&io::Error::from_raw_os_error(13)), "permission denied");
        assert_eq!(of(&io::Error::from_raw_os_error(2)), "no such file");
    }

    #[test]
    fn custom_errors_keep_their_text() {
        assert_eq!(of(&io::Error::other("torn by a fault")), "torn by a fault");
    }
}
