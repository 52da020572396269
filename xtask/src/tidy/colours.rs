//! Every colour is in the palette of `plot`, so that charts and pages have one look.

use super::{Finding, Tree};

/// The file that has them.
const PALETTE: &str = "crates/plot/src/palette.rs";
/// Ends of the files whose text may draw.
const DRAWN: [&str; 4] = [".rs", ".css", ".js", ".html"];
/// Characters before a `#` that begins a colour: those of a string, a value or an attribute.
const BEFORE: [char; 6] = ['"', '\'', ':', ' ', '(', ','];

/// Finds hexadecimal colours outside the palette.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in DRAWN.iter().flat_map(|end| tree.texts_ending(end)) {
        if path == PALETTE || !path.starts_with("crates/") {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            if line.match_indices('#').any(|(at, _)| is_colour(line, at)) {
                let rule = format!("a colour of its own; take one of {PALETTE}");
                findings.push(Finding::new(path, index + 1, rule));
            }
        }
    }
    findings
}

/// Whether a `#` in a string or value is followed by the digits of a colour and no more letters.
fn is_colour(line: &str, at: usize) -> bool {
    let rest = &line[at + 1..];
    let word: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
    let is_hex = matches!(word.len(), 3 | 6 | 8) && word.chars().all(|c| c.is_ascii_hexdigit());
    is_hex && line[..at].ends_with(BEFORE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_found_outside_the_palette_only() {
        let mut tree = Tree::default();
        let mut add = |path: &str, text: &str| tree.texts.insert(path.to_owned(), text.to_owned());
        let red = concat!("#", "aa0000");
        add("crates/a/src/chart.rs", &format!("let red = \"{red}\";\nlet id = \"#fallback\";"));
        add("crates/a/assets/style.css", &format!("a {{ color:{red}; }}\n#abc-list {{ }}"));
        add(PALETTE, &format!("const RED: &str = \"{red}\";"));
        add("docs/picture.html", red);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        let rule = "a colour of its own; take one of crates/plot/src/palette.rs";
        let expected = [
            format!("crates/a/src/chart.rs:1: {rule}"),
            format!("crates/a/assets/style.css:1: {rule}"),
        ];
        assert_eq!(found, expected);
    }
}
