//! A fix for a name that nothing has: the nearest that something has.

use lockstep_config::nearest;
use lockstep_estimate::model;

/// Most names that are worth a line.
const FEW: usize = 4;

/// What to try instead: the nearest spelling, or those few that begin with it, or all.
pub(super) fn fix(name: &str, known: &[&str]) -> String {
    let begun: Vec<&str> = known.iter().copied().filter(|one| one.starts_with(name)).collect();
    if (1..=FEW).contains(&begun.len()) && !name.is_empty() {
        return format!("try {}", begun.join(" or "));
    }
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("try {near}"),
        None => format!("try one of {}", known.join(", ")),
    }
}

/// What is said of a model that nobody knows.
pub(super) fn model(name: &str) -> String {
    let known = model::presets();
    let names: Vec<&str> = known.iter().map(|model| model.name.as_str()).collect();
    format!("--model {name} is not known; {}", fix(name, &names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_is_near_what_was_typed() {
        let known = ["llama-7b", "llama-65b", "gpt3-6.7b", "gpt3-175b"];
        assert_eq!(fix("llama-65", &known), "try llama-65b");
        assert_eq!(fix("lama-65b", &known), "try llama-65b");
        assert_eq!(fix("gpt3", &known), "try gpt3-6.7b or gpt3-175b");
        assert_eq!(fix("abacus", &known), "try one of llama-7b, llama-65b, gpt3-6.7b, gpt3-175b");
    }
}
