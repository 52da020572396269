//! Spelling suggestions: the known name closest to a mistyped one.
//!
//! The distance is optimal string alignment: the fewest insertions, deletions, replacements and
//! transpositions that turn one name into the other. A name is suggested only if at most a third of
//! it changes.

/// The candidate closest to `name`, if one is close enough; the first of several.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters_of_name: Vec<char> = name.chars().flat_map(char::to_lowercase).collect();
    // Bounds the quadratic time.
    if letters_of_name.len() > 64 {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| {
            let letters: Vec<char> = candidate.chars().collect();
            (distance(&letters_of_name, &letters), candidate)
        })
        .filter(|(edits, candidate)| *edits <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance, with three rows of the table in memory.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if swapped {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits(a: &str, b: &str) -> usize {
        distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
    }

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(edits("", ""), 0);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        assert_eq!(edits("cosine", "cosine"), 0);
        assert_eq!(edits("cosin", "cosine"), 1);
        assert_eq!(edits("cosiens", "cosine"), 2);
        assert_eq!(edits("tiyn", "tiny"), 1);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn only_close_names_are_suggested() {
        let names = ["sgd", "momentum", "adamw"];
        assert_eq!(nearest("adam", names), Some("adamw"));
        assert_eq!(nearest("AdamW", names), Some("adamw"));
        assert_eq!(nearest("momentmu", names), Some("momentum"));
        assert_eq!(nearest("lion", names), None);
        assert_eq!(nearest(&"a".repeat(5000), names), None);
    }
}
