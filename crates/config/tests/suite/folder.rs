//! `model.from`: the model of a folder, and the settings allowed besides it.

use lockstep_config::{ModelFolder, Recipe, Sources, model_from, resolve, resolve_with};

/// A folder with a small Llama.
fn folder() -> ModelFolder {
    let sets = ["model.layers=3", "model.width=64", "model.heads=4", "model.kv_heads=2"];
    let sets = sets.iter().chain(&["model.vocab=300", "model.ffn=100", "model.norm_eps=1e-6"]);
    let sets = sets.map(|set| (*set).to_owned()).collect();
    let model = resolve(&Sources { sets, ..Sources::default() }).expect("it is valid").model;
    let name = "f/config.json".to_owned();
    ModelFolder { name, model: model.to_toml(), ..ModelFolder::default() }
}

fn sources(preset: Option<&str>, sets: &[&str]) -> Sources {
    let mut all = vec!["model.from=f".to_owned()];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    Sources { preset: preset.map(str::to_owned), sets: all, ..Sources::default() }
}

fn with(preset: Option<&str>, sets: &[&str]) -> Result<Recipe, String> {
    resolve_with(&sources(preset, sets), &folder()).map_err(|errors| errors.to_string())
}

#[test]
fn the_folder_is_found_wherever_it_is_written() {
    assert_eq!(model_from(&sources(None, &[])).as_deref(), Some("f"));
    let file = Some(("r.toml".to_owned(), "[model]\nfrom = \"g\"\nwidth = 3\n".to_owned()));
    assert_eq!(model_from(&Sources { file, ..Sources::default() }).as_deref(), Some("g"));
    assert_eq!(model_from(&Sources::default()), None);
}

#[test]
fn the_model_follows_the_folder_over_defaults_and_presets() {
    for preset in [None, Some("tiny"), Some("gpt2")] {
        let recipe = with(preset, &[]).unwrap();
        assert_eq!(recipe.from, "f");
        assert_eq!(recipe.model.to_toml(), folder().model, "{preset:?}");
    }
}

#[test]
fn settings_that_match_the_folder_or_leave_its_weights_are_allowed() {
    let recipe =
        with(None, &["model.layers=3", "model.norm_eps=1e-6", "model.dropout=0.2"]).unwrap();
    assert_eq!(recipe.model.dropout.to_bits(), 0.2_f32.to_bits());
    let shorter = with(None, &["model.context=32"]).unwrap();
    assert_eq!(shorter.model.context, 32);
}

#[test]
fn the_family_of_a_folder_is_no_remedy() {
    let bloom = ["model.family=bloom", "model.heads=4", "model.width=64"];
    let sets = bloom.iter().map(|set| (*set).to_owned()).collect();
    let model = resolve(&Sources { sets, ..Sources::default() }).expect("it is valid").model;
    let folder = ModelFolder { model: model.to_toml(), ..folder() };
    let refused = resolve_with(&sources(None, &["finetune.lora_rank=8"]), &folder).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "finetune.lora_rank = 8 is not a setting of model.family = \"bloom\"; remove it"
    );
}

#[test]
fn settings_that_contradict_the_folder_are_refused() {
    for (set, line) in [
        ("model.layers=4", "model.layers = 4 contradicts f/config.json, which has 3; remove it"),
        (
            "model.family=gpt2",
            "model.family = \"gpt2\" contradicts f/config.json, which has \"llama\"; remove it",
        ),
        (
            "model.context=129",
            "model.context = 129 contradicts f/config.json, which has 128; remove it",
        ),
        (
            "model.preset=tiny",
            "model.preset = \"tiny\" is not supported with model.from, which has a model; remove \
             it",
        ),
    ] {
        let lines = with(None, &[set]).unwrap_err();
        assert!(lines.lines().any(|found| found == line), "{set}: {lines}");
    }
    let several = with(None, &["model.layers=4", "model.ffn=8", "train.steps=x"]).unwrap_err();
    assert_eq!(several.lines().count(), 3, "{several}");
}

#[test]
fn a_folder_whose_model_is_impossible_here_is_refused_by_its_file() {
    let mut folder = folder();
    folder.model = folder.model.replace("model.heads = 4", "model.heads = 5");
    let errors = resolve_with(&sources(None, &[]), &folder).unwrap_err().to_string();
    assert!(errors.starts_with("f/config.json: model.heads = 5 does not divide"), "{errors}");
}

#[test]
fn the_key_survives_printing_and_its_absence_leaves_the_hash() {
    let plain = Recipe::default();
    assert!(!plain.to_toml().contains("from"));
    assert!(!plain.identity_text().contains("model.from"));
    let recipe = with(None, &["model.dropout=0.2"]).unwrap();
    let file = Some(("r.toml".to_owned(), recipe.to_toml()));
    // The recipe of a run is complete without the folder.
    assert_eq!(resolve(&Sources { file, ..Sources::default() }).unwrap(), recipe);
    assert!(recipe.identity_text().contains("model.from = \"f\"\n"));
}

#[test]
fn the_learning_rate_suits_pretrained_weights_unless_a_source_sets_one() {
    let recipe = with(None, &[]).unwrap();
    assert_eq!(recipe.optim.lr.to_bits(), 1.7e-4_f64.to_bits(), "5e-5 sqrt(768 / 64)");
    let rule = recipe.fine_tuning_rule().expect("it chose the learning rate");
    assert_eq!(
        rule,
        "fine-tuning f: learning rate 1.7e-4 = 5e-5 x sqrt(768 / model.width); set optim.lr to \
         choose another"
    );
    assert!(recipe.identity_text().contains("optim.lr = 0.00017\n"), "it is a normal value");

    let file = Some(("r.toml".to_owned(), "optim.lr = 1e-3\n".to_owned()));
    let written = Sources { file, ..sources(None, &[]) };
    let written = resolve_with(&written, &folder()).unwrap();
    for (chosen, lr) in [
        (written, 1e-3),
        (with(None, &["optim.lr=2e-3"]).unwrap(), 2e-3),
        (with(Some("gpt2"), &[]).unwrap(), 6e-4),
        (with(None, &["optim.name=sgd"]).unwrap(), Recipe::default().optim.lr),
    ] {
        assert_eq!(chosen.optim.lr.to_bits(), f64::to_bits(lr));
        assert_eq!(chosen.fine_tuning_rule(), None, "{lr}");
    }
    assert_eq!(Recipe::default().fine_tuning_rule(), None, "random weights have no rule");
}

#[test]
fn the_maximum_number_of_positions_outlives_a_shorter_context() {
    let whole = with(None, &[]).unwrap();
    assert_eq!(whole.max_positions, None, "it is the context");
    assert!(!whole.to_toml().contains("max_positions"));
    let length = whole.model.context;
    let shorter = with(None, &["model.context=32"]).unwrap();
    assert_eq!(shorter.max_positions, Some(length));
    assert!(shorter.to_toml().contains(&format!("\nmax_positions = {length}\n")));
    assert!(!shorter.identity_text().contains("max_positions"), "it changes no bit");
    let chosen = with(None, &["model.context=32", "model.max_positions=64"]).unwrap();
    assert_eq!(chosen.max_positions, Some(64));

    // A run that was itself trained with a shorter context declares more than its context.
    let run = ModelFolder { max_positions: Some(4096), ..folder() };
    let second = resolve_with(&sources(None, &["model.context=16"]), &run).unwrap();
    assert_eq!((second.model.context, second.max_positions), (16, Some(4096)));
    let file = Some(("r.toml".to_owned(), second.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }).unwrap(), second);

    let small = with(None, &["model.context=32", "model.max_positions=31"]).unwrap_err();
    assert_eq!(small, "model.max_positions = 31 is below model.context = 32; try 32");
}
