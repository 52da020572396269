//! Colours of the console: ANSI codes where the environment wants them.

/// Whether output has colours. `NO_COLOR` refuses them and `CLICOLOR_FORCE` demands them; otherwise
/// only a terminal gets them, unless `TERM=dumb` or `CLICOLOR=0`.
pub fn has_colors(is_terminal: bool, env: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty() && value != "0");
    if env("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return false;
    }
    if is_set("CLICOLOR_FORCE") {
        return true;
    }
    is_terminal && !is_dumb(&env) && env("CLICOLOR").is_none_or(|value| value != "0")
}

/// Whether the terminal cannot move its cursor.
pub fn is_dumb(env: impl Fn(&str) -> Option<String>) -> bool {
    env("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Role of a piece of text, which decides its colour. Meaning is never in the colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    /// Plain text.
    Plain,
    /// Labels and prefixes.
    Dim,
    /// The number to look at first.
    Strong,
    /// The part of the run that is done.
    Done,
    /// Recent losses.
    Trend,
    Warning,
    Error,
}

impl Paint {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "2",
            Self::Strong => "1",
            Self::Done => "36",
            Self::Trend => "32",
            Self::Warning => "1;33",
            Self::Error => "1;31",
        }
    }
}

/// Appends a piece of text in its colour.
pub(super) fn push_painted(text: &mut String, piece: &str, paint: Paint, has_colors: bool) {
    if !has_colors || paint == Paint::Plain || piece.is_empty() {
        text.push_str(piece);
        return;
    }
    for part in ["\x1b[", paint.code(), "m", piece, "\x1b[0m"] {
        text.push_str(part);
    }
}

/// Appends a line, with the rank, `warning:` and `error:` at its start in colour.
pub(super) fn push_line(text: &mut String, line: &str, has_colors: bool) {
    let (prefix, line) = line.split_at(rank_prefix_len(line));
    push_painted(text, prefix, Paint::Dim, has_colors);
    let paint = |label: &str| if label == "error:" { Paint::Error } else { Paint::Warning };
    let label = ["warning:", "error:"].into_iter().find(|label| line.starts_with(label));
    let (label, line) = line.split_at(label.map_or(0, str::len));
    push_painted(text, label, paint(label), has_colors);
    text.push_str(line);
}

/// Length of `[rank] ` at the start of a line.
pub(super) fn rank_prefix_len(line: &str) -> usize {
    let rank = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let rank = rank.filter(|(rank, _)| rank.bytes().all(|byte| byte.is_ascii_digit()));
    rank.map_or(0, |(rank, _)| rank.len() + "[] ".len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(is_terminal: bool, variables: &[(&str, &str)]) -> bool {
        has_colors(is_terminal, |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_decides_on_colours() {
        let term = ("TERM", "xterm-256color");
        assert!(decide(true, &[term]));
        assert!(decide(true, &[term, ("NO_COLOR", "")]));
        assert!(decide(true, &[term, ("CLICOLOR_FORCE", "0")]));
        assert!(decide(false, &[("CLICOLOR_FORCE", "1")]));
        assert!(decide(true, &[("TERM", "dumb"), ("CLICOLOR_FORCE", "1")]));
        for refused in [
            (false, vec![term]),
            (false, vec![term, ("CLICOLOR_FORCE", "0")]),
            (true, vec![term, ("NO_COLOR", "1")]),
            (true, vec![term, ("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]),
            (true, vec![term, ("CLICOLOR", "0")]),
            (true, vec![("TERM", "dumb")]),
            (true, vec![]),
        ] {
            assert!(!decide(refused.0, &refused.1), "{refused:?}");
        }
    }

    #[test]
    fn only_the_start_of_a_line_is_painted() {
        let paint = |line: &str, has_colors: bool| {
            let mut text = String::new();
            push_line(&mut text, line, has_colors);
            text
        };
        assert_eq!(paint("[12] warning: slow", false), "[12] warning: slow");
        assert_eq!(
            paint("[12] warning: slow", true),
            "\x1b[2m[12] \x1b[0m\x1b[1;33mwarning:\x1b[0m slow"
        );
        assert_eq!(paint("error: it is lost", true), "\x1b[1;31merror:\x1b[0m it is lost");
        for plain in ["step 2  validation loss 4.5", "[a] b", "[1]", "no warning: here"] {
            assert_eq!(paint(plain, true), plain);
        }
    }
}
