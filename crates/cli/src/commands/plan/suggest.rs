//! Suggestions for an unknown name: the closest known ones.

use lockstep_config::nearest;
use lockstep_planner::model;

/// Most names with the same prefix that one line lists.
const MAX_NAMES: usize = 4;

/// Names to try instead: those few that start with `name`, the closest spelling, or all.
fn suggest(name: &str, known: &[&str]) -> String {
    let prefixed: Vec<&str> = known.iter().copied().filter(|one| one.starts_with(name)).collect();
    if (1..=MAX_NAMES).contains(&prefixed.len()) && !name.is_empty() {
        return format!("try {}", prefixed.join(" or "));
    }
    match nearest(name, known.iter().copied()) {
        Some(closest) => format!("try {closest}"),
        None => format!("try one of {}", known.join(", ")),
    }
}

/// The error for an unknown `--model`.
pub(super) fn unknown_model(name: &str) -> String {
    let known = model::presets();
    let names: Vec<&str> = known.iter().map(|model| model.name.as_str()).collect();
    format!("--model {name} is not known; {}", suggest(name, &names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggestion_is_close_to_the_typed_name() {
        let known = ["llama-7b", "llama-65b", "gpt3-6.7b", "gpt3-175b"];
        assert_eq!(suggest("llama-65", &known), "try llama-65b");
        assert_eq!(suggest("lama-65b", &known), "try llama-65b");
        assert_eq!(suggest("gpt3", &known), "try gpt3-6.7b or gpt3-175b");
        let all = "try one of llama-7b, llama-65b, gpt3-6.7b, gpt3-175b";
        assert_eq!(suggest("abacus", &known), all);
    }
}
