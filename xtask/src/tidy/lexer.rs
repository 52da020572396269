//! Splits Rust text into code, comments and literals, with lines and columns unchanged.
//!
//! A scan for `fn` or for a macro must not read strings, and a scan for notes must read comments
//! only. The source is therefore copied three times, each copy with everything else blanked.
//! The lexer knows strings, raw strings, characters, lifetimes and nested comments, and nothing
//! more of Rust.

/// Three copies of one source, each with its lines and columns.
#[derive(Debug, Default)]
pub(super) struct Masked {
    /// Everything but comments and the contents of literals.
    pub(super) code: String,
    /// Comments only, documentation included.
    pub(super) comments: String,
    /// String and character literals only, with their quotes.
    pub(super) literals: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Reads a source once, token by token, into its three copies.
pub(super) fn mask(source: &str) -> Masked {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = Masked::default();
    let mut at = 0;
    while at < chars.len() {
        let after_word = at > 0 && is_word(chars[at - 1]);
        let (kind, len) = token(&chars[at..], after_word);
        for &c in &chars[at..at + len] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            masked.code.push(if kind == Kind::Code { c } else { blank });
            masked.comments.push(if kind == Kind::Comment { c } else { blank });
            masked.literals.push(if kind == Kind::Literal { c } else { blank });
        }
        at += len;
    }
    masked
}

/// Whether a character can be part of an identifier.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Kind and length of the token at the start of `rest`, which is not empty.
fn token(rest: &[char], after_word: bool) -> (Kind, usize) {
    match rest {
        ['/', '/', ..] => (Kind::Comment, line_comment_len(rest)),
        ['/', '*', ..] => (Kind::Comment, block_comment_len(rest)),
        ['"', ..] => (Kind::Literal, quoted_len(rest)),
        ['\'', ..] => character_len(rest).map_or((Kind::Code, 1), |len| (Kind::Literal, len)),
        ['r' | 'b' | 'c', ..] if !after_word => {
            prefixed_len(rest).map_or((Kind::Code, 1), |len| (Kind::Literal, len))
        }
        _ => (Kind::Code, 1),
    }
}

fn line_comment_len(rest: &[char]) -> usize {
    rest.iter().position(|&c| c == '\n').unwrap_or(rest.len())
}

fn block_comment_len(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// From an opening quote to the matching one, past escapes.
fn quoted_len(rest: &[char]) -> usize {
    let quote = rest[0];
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    rest.len().min(at + 1)
}

/// A character literal, or nothing for a lifetime: `'a` has no quote two places on.
fn character_len(rest: &[char]) -> Option<usize> {
    match rest {
        ['\'', '\\', ..] => Some(quoted_len(rest)),
        ['\'', _, '\'', ..] => Some(3),
        _ => None,
    }
}

/// `b"..."`, `c"..."`, `b'x'`, `r"..."`, `r#"..."#`, `br#"..."#`; nothing for other words.
fn prefixed_len(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let raw = rest[..prefix].contains(&'r');
    let num_hashes = rest[prefix..].iter().take_while(|&&c| c == '#').count();
    let open = prefix + num_hashes;
    match rest.get(open) {
        Some('"') if raw => {
            let close: Vec<char> =
                std::iter::once('"').chain(std::iter::repeat_n('#', num_hashes)).collect();
            let body = open + 1;
            let found = rest[body..].windows(close.len()).position(|window| window == close);
            Some(found.map_or(rest.len(), |at| body + at + close.len()))
        }
        Some('"') if num_hashes == 0 => Some(prefix + quoted_len(&rest[prefix..])),
        Some('\'') if prefix == 1 && num_hashes == 0 => {
            character_len(&rest[prefix..]).map(|len| prefix + len)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of a source with runs of blanks shortened, which is what the tests compare.
    fn code(source: &str) -> String {
        mask(source).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn strings_of_every_kind_are_blanked() {
        assert_eq!(code(r#"a("x \" } y") b"#), "a( ) b");
        assert_eq!(code("a(r#\"x \" } y\"#) b"), "a( ) b");
        assert_eq!(code("a(br\"\\\") b"), "a( ) b");
        assert_eq!(code("a(b\"}\", c\"}\", b'}')"), "a( , , )");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_stay() {
        assert_eq!(code("f('{', '\\'', '\\u{7d}')"), "f( , , )");
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("'outer: loop { break 'outer; }"), "'outer: loop { break 'outer; }");
    }

    #[test]
    fn identifiers_that_end_in_a_prefix_letter_are_no_literals() {
        assert_eq!(code("for x in var { r#fn(); }"), "for x in var { r#fn(); }");
        assert_eq!(code("attr\"s\" x"), "attr x");
    }

    #[test]
    fn comments_nest_and_go_to_their_own_copy() {
        let masked = mask("a /* b /* c */ d */ e // f\n\"// g\"");
        assert_eq!(masked.code.split_whitespace().collect::<Vec<_>>(), ["a", "e"]);
        let comments: Vec<&str> = masked.comments.split_whitespace().collect();
        assert_eq!(comments.join(" "), "/* b /* c */ d */ // f");
        assert_eq!(masked.literals.trim(), "\"// g\"");
    }

    #[test]
    fn all_copies_keep_every_line_and_column() {
        let source = "let é = \"one\ntwo\"; // x\n/* y\n*/ z";
        let masked = mask(source);
        for copy in [&masked.code, &masked.comments, &masked.literals] {
            let widths = |text: &str| text.lines().map(|l| l.chars().count()).collect::<Vec<_>>();
            assert_eq!(widths(copy), widths(source));
        }
        assert_eq!(masked.code.lines().last(), Some("   z"));
    }

    #[test]
    fn an_open_end_stops_at_the_end_of_the_source() {
        for source in ["\"abc", "/* abc", "r#\"abc\"", "'\\", "// abc", "'", "b", "\"\\"] {
            assert_eq!(mask(source).code.chars().count(), source.chars().count(), "{source}");
        }
    }
}
