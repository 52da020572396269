//! Globs: `*`, `?`, `[a-z]`, `{a,b}` within a folder, `**` across folders.
//!
//! Patterns are matched name by name against listings of [`Files`](lockstep_platform::Files), so
//! they work on any storage. As in shells, a leading dot must be matched explicitly.

/// Whether a text contains glob characters.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Brace expansion, in order; the pattern itself without braces.
pub(super) fn braces(pattern: &str) -> Result<Vec<String>, &'static str> {
    let Some(open) = pattern.find('{') else {
        return if pattern.contains('}') {
            Err("a } without its {")
        } else {
            Ok(vec![pattern.into()])
        };
    };
    let close = matching(&pattern[open..]).ok_or("a { without its }")? + open;
    let (before, after) = (&pattern[..open], &pattern[close + 1..]);
    let mut texts = Vec::new();
    for choice in choices(&pattern[open + 1..close]) {
        texts.extend(braces(&format!("{before}{choice}{after}"))?);
    }
    Ok(texts)
}

/// Position of the closing brace.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, letter)| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// Alternatives between commas outside inner braces.
fn choices(inside: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&inside[start..]);
    found
}

/// Element of a name pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Element {
    Letter(char),
    AnyLetter,
    AnyText,
    OneOf { ranges: Vec<(char, char)>, is_negated: bool },
}

/// Pattern of one path component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamePattern(Vec<Element>);

impl NamePattern {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut elements = Vec::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            elements.push(match letter {
                '*' => Element::AnyText,
                '?' => Element::AnyLetter,
                '[' => one_of(&mut letters)?,
                letter => Element::Letter(letter),
            });
        }
        Ok(Self(elements))
    }

    /// Whether the pattern matches a name.
    pub(super) fn matches(&self, name: &str) -> bool {
        let is_hidden = name.starts_with('.');
        if is_hidden && self.0.first() != Some(&Element::Letter('.')) {
            return false;
        }
        let letters: Vec<char> = name.chars().collect();
        // Backtracking only ever extends the last `*`.
        let (mut at, mut element, mut retry) = (0, 0, None);
        while at < letters.len() {
            match self.0.get(element) {
                Some(Element::AnyText) => {
                    retry = Some((element, at));
                    element += 1;
                }
                Some(found) if found.takes(letters[at]) => (at, element) = (at + 1, element + 1),
                _ => {
                    let Some((star, taken)) = retry else { return false };
                    retry = Some((star, taken + 1));
                    (at, element) = (taken + 1, star + 1);
                }
            }
        }
        self.0[element..].iter().all(|rest| *rest == Element::AnyText)
    }
}

impl Element {
    fn takes(&self, letter: char) -> bool {
        match self {
            Self::Letter(own) => *own == letter,
            Self::AnyLetter => true,
            Self::AnyText => false,
            Self::OneOf { ranges, is_negated } => {
                ranges.iter().any(|&(low, high)| (low..=high).contains(&letter)) != *is_negated
            }
        }
    }
}

/// Character class in brackets: characters and ranges, negated by `!` or `^`.
fn one_of(letters: &mut std::str::Chars<'_>) -> Result<Element, &'static str> {
    let mut inside = Vec::new();
    loop {
        match letters.next().ok_or("a [ without its ]")? {
            // A leading closing bracket is literal.
            ']' if !matches!(inside[..], [] | ['!' | '^']) => break,
            letter => inside.push(letter),
        }
    }
    let is_negated = matches!(inside[0], '!' | '^') && inside.len() > 1;
    let mut rest = &inside[usize::from(is_negated)..];
    let mut ranges = Vec::new();
    while let Some((&low, after)) = rest.split_first() {
        if let ['-', high, after @ ..] = after {
            ranges.push((low, *high));
            rest = after;
        } else {
            ranges.push((low, low));
            rest = after;
        }
    }
    Ok(Element::OneOf { ranges, is_negated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        let cases = [
            ("*", "a.txt", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?.txt", "é.txt", true),
            ("?.txt", "ab.txt", false),
            ("part-[0-3][!5].x", "part-27.x", true),
            ("part-[0-3][!5].x", "part-25.x", false),
            ("part-[0-3][!5].x", "part-47.x", false),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, name, expected) in cases {
            let found = NamePattern::parse(pattern).unwrap().matches(name);
            assert_eq!(found, expected, "{pattern} on {name}");
        }
        assert_eq!(NamePattern::parse("[ab"), Err("a [ without its ]"));
    }

    #[test]
    fn braces_stand_for_each_of_their_choices() {
        let all = |pattern| braces(pattern).unwrap();
        assert_eq!(all("a"), ["a"]);
        assert_eq!(all("{a,b}.{x,y}"), ["a.x", "a.y", "b.x", "b.y"]);
        assert_eq!(all("p{1{0,1},2}q"), ["p10q", "p11q", "p2q"]);
        assert_eq!(all("a{,.gz}"), ["a", "a.gz"]);
        assert_eq!(braces("{a"), Err("a { without its }"));
        assert_eq!(braces("a}"), Err("a } without its {"));
    }
}
