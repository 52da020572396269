//! Lines, paragraphs and terms of a document.

/// A document, divided once for all rules.
#[derive(Debug)]
pub struct Document<'a> {
    /// The whole text.
    pub text: &'a str,
    /// Runs of characters that are not white space.
    pub terms: Vec<&'a str>,
    /// Lines that are not blank, without the space around them.
    pub lines: Vec<&'a str>,
    /// Text between blank lines, without the space around it.
    pub paragraphs: Vec<&'a str>,
}

impl<'a> Document<'a> {
    /// Divides a text.
    pub fn of(text: &'a str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Self { text, terms: text.split_whitespace().collect(), lines, paragraphs: paragraphs(text) }
    }

    /// Number of terms.
    pub fn num_terms(&self) -> f64 {
        self.terms.len() as f64
    }
}

fn paragraphs(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut position) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim().is_empty() {
            found.push(&text[start..position]);
            start = position + line.len();
        }
        position += line.len();
    }
    found.push(&text[start..]);
    found.into_iter().map(str::trim).filter(|paragraph| !paragraph.is_empty()).collect()
}

/// A fraction, 0 of nothing.
pub(super) fn fraction(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_terms_lines_and_paragraphs() {
        let document = Document::of("one  two\nthree\n \n\n four\n");
        assert_eq!(document.terms, ["one", "two", "three", "four"]);
        assert_eq!(document.lines, ["one  two", "three", "four"]);
        assert_eq!(document.paragraphs, ["one  two\nthree", "four"]);
        assert!(Document::of(" \n\n").paragraphs.is_empty());
    }
}
