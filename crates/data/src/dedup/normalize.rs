//! Text as it is compared: lower case, with one space for each run of white space.

/// Replaces `out` by the normal form of a text.
pub fn normalize(text: &str, out: &mut String) {
    out.clear();
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().flat_map(char::to_lowercase));
    }
}

/// Words of a normalised text: runs of letters and digits.
pub fn terms(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_white_space_make_no_difference() {
        let normal = |text: &str| {
            let mut out = String::from("before");
            normalize(text, &mut out);
            out
        };
        assert_eq!(normal("  The\tÄpfel \n\n fell. "), "the äpfel fell.");
        assert_eq!(normal(" \n"), "");
        let text = normal("Don't \u{a0}STOP -- 3.14");
        assert_eq!(terms(&text).collect::<Vec<_>>(), ["don", "t", "stop", "3", "14"]);
    }
}
