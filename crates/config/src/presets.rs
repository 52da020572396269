//! Presets: recipes that ship with the program, as TOML files.
//!
//! A preset sets only keys that differ from the defaults and leaves derived keys derived, so that
//! one `--set` on top of it suffices. The comment on its first line is its purpose.

/// Name and text of each preset, the default one first.
const PRESETS: &[(&str, &str)] = &[
    ("bible-small", include_str!("../presets/bible-small.toml")),
    ("tiny", include_str!("../presets/tiny.toml")),
    ("wide-odd", include_str!("../presets/wide-odd.toml")),
    ("gpt2-small-bytes", include_str!("../presets/gpt2-small-bytes.toml")),
    ("gpt2-medium-bytes", include_str!("../presets/gpt2-medium-bytes.toml")),
    ("bench", include_str!("../presets/bench.toml")),
    ("gpt2", include_str!("../presets/gpt2.toml")),
    ("methods", include_str!("../presets/methods.toml")),
    ("digits", include_str!("../presets/digits.toml")),
    ("federated", include_str!("../presets/federated.toml")),
    ("quadratic", include_str!("../presets/quadratic.toml")),
    ("ridge", include_str!("../presets/ridge.toml")),
    ("logistic", include_str!("../presets/logistic.toml")),
];

/// Names of the presets, as the choices of a key.
pub(crate) const NAMES: &[&str] = &{
    let mut names = [""; PRESETS.len()];
    let mut index = 0;
    while index < PRESETS.len() {
        names[index] = PRESETS[index].0;
        index += 1;
    }
    names
};

/// Name and one-line purpose of every preset.
pub fn presets() -> Vec<(&'static str, &'static str)> {
    PRESETS.iter().map(|(name, text)| (*name, purpose(text))).collect()
}

/// The TOML text of a preset.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

fn purpose(text: &'static str) -> &'static str {
    text.lines().next().unwrap_or_default().trim_start_matches('#').trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, resolve};

    #[test]
    fn every_preset_has_a_purpose_and_resolves() {
        for (name, purpose) in presets() {
            assert!(purpose.ends_with('.') && purpose.len() > 20, "{name}: {purpose}");
            resolve(&Sources { preset: Some(name.into()), ..Sources::default() })
                .unwrap_or_else(|errors| panic!("{name}: {errors}"));
        }
    }

    #[test]
    fn every_preset_can_be_shortened_with_one_setting() {
        for name in NAMES {
            let sets = vec!["train.steps=1".to_owned()];
            let sources = Sources { preset: Some((*name).into()), sets, ..Sources::default() };
            let recipe = resolve(&sources).unwrap_or_else(|errors| panic!("{name}: {errors}"));
            assert_eq!((recipe.train.steps, recipe.optim.warmup_steps), (1, 0));
        }
    }

    #[test]
    fn no_preset_refers_to_another() {
        assert!(PRESETS.iter().all(|(_, text)| !text.contains("preset =")));
    }

    #[test]
    fn the_first_preset_is_the_default_recipe() {
        let named = Sources { preset: Some(NAMES[0].into()), ..Sources::default() };
        assert_eq!(resolve(&named), resolve(&Sources::default()));
    }
}
