//! Parameter groups: settings of the optimizer for parameters whose names match a pattern.

use crate::topic::entry;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::MAX_STEPS;

entry! {
    /// A parameter group.
    pub struct Group {
        /// Pattern of parameter names, with `*` for any characters and `?` for one.
        pattern as match: String = required, not_empty();
        /// Factor of the learning rate.
        lr_scale: f64 = (1.0), float(Open(0.0), Closed(1e6));
        /// Weight decay of the group, biases and norms included, which otherwise have none.
        weight_decay: Option<f64> = none, float(Closed(0.0), Closed(1000.0));
        /// Maximum gradient norm of the group by itself; 0 does not limit.
        clip: Option<f64> = none, float(Closed(0.0), Closed(1e30));
        /// Never trained.
        frozen: bool = none;
        /// Number of steps after which the group is frozen.
        freeze_after: Option<u64> = none, integer(1, MAX_STEPS);
        /// Number of steps before which the group is frozen.
        unfreeze_at: Option<u64> = none, integer(1, MAX_STEPS);
    }
}

impl Group {
    /// Whether the pattern matches the name of a parameter.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }

    /// Step since which the group has been trained continuously, if it is trained in `step`.
    ///
    /// ```
    /// # let group = lockstep_config::Group { pattern: "*".into(), lr_scale: 1.0, clip: None,
    /// #     weight_decay: None, frozen: false, freeze_after: None, unfreeze_at: None };
    /// let group = lockstep_config::Group { unfreeze_at: Some(3), freeze_after: Some(5), ..group };
    /// let since: Vec<_> = (2..6).map(|step| group.trained_since(step)).collect();
    /// assert_eq!(since, [None, Some(3), Some(3), None]);
    /// ```
    pub fn trained_since(&self, step: u64) -> Option<u64> {
        let start = self.unfreeze_at.unwrap_or(0);
        let end = self.freeze_after.unwrap_or(u64::MAX);
        match (start, end) {
            _ if self.frozen => None,
            // Trained, frozen, trained.
            _ if end < start && step < end => Some(0),
            _ if end < start => (step >= start).then_some(start),
            _ => (start..end).contains(&step).then_some(start),
        }
    }
}

/// Whether a glob pattern matches a name: `*` stands for any characters and `?` for one.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    glob(pattern.as_bytes(), name.as_bytes())
}

/// Glob matching. A star takes as few characters as possible, and one more whenever the rest does
/// not match; only the last star needs backtracking.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(letter) if *letter == b'?' || *letter == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, t) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(pattern: &str) -> Group {
        Group {
            pattern: pattern.to_owned(),
            lr_scale: 1.0,
            weight_decay: None,
            clip: None,
            frozen: false,
            freeze_after: None,
            unfreeze_at: None,
        }
    }

    #[test]
    fn stars_match_any_characters_and_question_marks_one() {
        let yes = [
            ("*", ""),
            ("*.bias", "h.0.attn.bias"),
            ("h.?.attn*", "h.1.attn.c_attn.weight"),
            ("*a*b*c", "xxaabbabcc"),
            ("wte", "wte"),
            ("**", "anything"),
        ];
        let no = [("*.bias", "h.0.bias.weight"), ("h.?.", "h.10."), ("", "a"), ("a?", "a")];
        assert!(yes.iter().all(|(pattern, name)| group(pattern).matches(name)));
        assert!(no.iter().all(|(pattern, name)| !group(pattern).matches(name)));
    }

    #[test]
    fn groups_are_frozen_in_the_steps_they_name() {
        let since = |freeze_after, unfreeze_at| {
            let group = Group { freeze_after, unfreeze_at, ..group("*") };
            (0..5).map(|step| group.trained_since(step)).collect::<Vec<_>>()
        };
        assert_eq!(since(None, None), [Some(0); 5]);
        assert_eq!(since(Some(2), None), [Some(0), Some(0), None, None, None]);
        assert_eq!(since(None, Some(3)), [None, None, None, Some(3), Some(3)]);
        assert_eq!(since(Some(3), Some(1)), [None, Some(1), Some(1), None, None]);
        assert_eq!(since(Some(1), Some(3)), [Some(0), None, None, Some(3), Some(3)]);
        let frozen = Group { frozen: true, ..group("*") };
        assert_eq!(frozen.trained_since(0), None);
    }
}
