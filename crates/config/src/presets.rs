//! Presets: recipes that ship with the program, as TOML files.
//!
//! A preset sets the keys on which its result depends and whose default may change, and leaves
//! derived keys derived, so that one `--set` on top of it suffices. The comment on its first line
//! is its purpose.

/// Name and text of each preset, the default one first.
const PRESETS: &[(&str, &str)] = &[
    ("bible-quick", include_str!("../presets/bible-quick.toml")),
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

    /// Recipe hashes of all presets but the default one, whose keys follow the defaults.
    #[rustfmt::skip]
    const HASHES: &[(&str, &str)] = &[
        ("bible-small", "76afe9bddf8597a3a80dc30f75da1fc996d95121322754a0877b65000636dfaa"),
        ("tiny", "4d4c46be9ad9e948b40474b48f23417a9afd43aaf7858cce1e2b45c887d3e991"),
        ("wide-odd", "618547faca80c896128e1d38768171dd8c31fd7dd5eef4b27972795b343c3d95"),
        ("gpt2-small-bytes", "8d4442ad097d69dea0920c9a610af7a8274ae3e597d95cbef851b0be5ae7781b"),
        ("gpt2-medium-bytes", "524e5bebce185f5d8cf0f117e1abab914fe8f8712eb48721d41be216aa99e6f1"),
        ("bench", "22feedd5c8b5b6e692adfb813c053a3a92f18fee5d3d7b3c72b024a93de09205"),
        ("gpt2", "8bcbdbac0c24b15d2ba329b716d07d60f5f3bebdd98e5b7478138a1d3c24cc5f"),
        ("methods", "a81d067e72700be388cc894c897a46e453483d528972977bf3f0aaac31848344"),
        ("digits", "a5a972b4a175388b3149ab9bd9606cd3b58cd8420e7396b8d567ba0821ed7617"),
        ("federated", "2c5d22a9f50dee1e74f4d165c3f8198d42241a175c72608290ebe0d85b98325c"),
        ("quadratic", "8d7cb2d7af83a67882e880baf22a9d04e4dfe3a4f112bba95f743653c2c01ddd"),
        ("ridge", "8812af107e3b89a30d17b27cae0f43d9dc43da000bdcc1616ca833235e4ba8b5"),
        ("logistic", "b1ee6432c0515d3d6f813e2f1fd619d6c55567275c0ed9f5e066a87fa03de599"),
    ];

    #[test]
    fn no_preset_changes_its_hash() {
        let hash = |name: &&str| {
            let sources = Sources { preset: Some((*name).to_owned()), ..Sources::default() };
            resolve(&sources).unwrap_or_else(|errors| panic!("{name}: {errors}")).hash()
        };
        let found: Vec<_> = NAMES[1..].iter().map(|name| (*name, hash(name))).collect();
        let expected: Vec<_> =
            HASHES.iter().map(|(name, hash)| (*name, hash.to_string())).collect();
        assert_eq!(found, expected, "a recorded run of a preset would have another recipe");
    }

    #[test]
    fn the_first_preset_is_the_default_recipe() {
        let named = Sources { preset: Some(NAMES[0].into()), ..Sources::default() };
        assert_eq!(resolve(&named), resolve(&Sources::default()));
    }
}
