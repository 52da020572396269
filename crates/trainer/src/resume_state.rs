//! Position from which training starts or resumes.

use lockstep_checkpoint::sharded::Reader;
use lockstep_config::Recipe;
use lockstep_data::Cursor;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Maximum number of settings that an error lists.
const MAX_LISTED: usize = 4;

/// Position from which training starts.
pub struct ResumeState {
    /// First step to run.
    pub step: u64,
    /// Position in the data.
    pub cursor: Cursor,
    /// Losses of the finished steps, with capacity for all steps.
    pub losses: Vec<f64>,
    /// Duration of the finished steps in seconds.
    pub seconds: f64,
    /// Checkpoint that the run resumes from.
    pub from: Option<PathBuf>,
    /// Reader of the checkpoint, if this program wrote it.
    pub reader: Option<Reader>,
    /// Warnings about unusable checkpoints.
    pub warnings: Vec<String>,
}

impl ResumeState {
    /// Position at the start of a new run.
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let num_steps = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Self {
            step: 0,
            cursor: Cursor::start(),
            losses: Vec::with_capacity(num_steps),
            seconds: 0.0,
            from: None,
            reader: None,
            warnings: Vec::new(),
        }
    }
}

/// Settings in which two identities differ, one text for all of them. The number of steps comes
/// first, since other settings derive from it.
pub(crate) fn differences(before: &str, now: &str) -> String {
    let [before, now] = [before, now].map(|text| -> BTreeMap<&str, &str> {
        text.lines().filter_map(|line| line.split_once(" = ")).collect()
    });
    let keys: BTreeSet<&str> = before.keys().chain(now.keys()).copied().collect();
    let mut keys: Vec<&str> =
        keys.into_iter().filter(|key| before.get(key) != now.get(key)).collect();
    keys.sort_by_key(|key| *key != "train.steps");
    let of = |settings: &BTreeMap<&str, &str>, key: &str| match settings.get(key) {
        Some(value) => format!("{key} = {value}"),
        None => format!("no {key}"),
    };
    let shown = keys.iter().take(MAX_LISTED);
    let mut parts: Vec<String> =
        shown.map(|key| format!("{} there, {} here", of(&before, key), of(&now, key))).collect();
    if keys.len() > MAX_LISTED {
        parts.push(format!("and {} more", keys.len() - MAX_LISTED));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn differences_name_every_key_with_both_values_and_the_steps_first() {
        let before = "optim.warmup_steps = 50\ntrain.seed = 1\ntrain.steps = 500\n";
        let now = "optim.warmup_steps = 30\ntrain.seed = 1\ntrain.steps = 300\n";
        assert_eq!(
            differences(before, now),
            "train.steps = 500 there, train.steps = 300 here; optim.warmup_steps = 50 there, \
             optim.warmup_steps = 30 here"
        );
        assert_eq!(
            differences("a.x = 1\n", "a.y = \"b = c\"\n"),
            "a.x = 1 there, no a.x here; no a.y there, a.y = \"b = c\" here"
        );
    }

    #[test]
    fn many_differences_are_counted() {
        let line = |n: u32, value: u32| format!("a.k{n} = {value}\n");
        let of = |value: u32| (0..7).map(|n| line(n, value)).collect::<Vec<_>>().concat();
        let text = differences(&of(1), &of(2));
        assert!(text.starts_with("a.k0 = 1 there, a.k0 = 2 here; a.k1 = 1"), "{text}");
        assert!(text.ends_with("a.k3 = 2 here; and 3 more"), "{text}");
    }
}
