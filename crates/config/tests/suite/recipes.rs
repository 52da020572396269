//! Contents of a recipe, precedence of sources, printing and identity.

use lockstep_config::{
    Family, IsaChoice, LrSchedule, OptimName, Recipe, Source, Sources, describe_keys, resolve,
};

fn from(preset: Option<&str>, file: &str, sets: &[&str]) -> Recipe {
    let sources = Sources {
        file: Some(("a.toml".to_owned(), file.to_owned())),
        preset: preset.map(str::to_owned),
        sets: sets.iter().map(|argument| (*argument).to_owned()).collect(),
        ..Sources::default()
    };
    resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let text = include_str!("defaults.toml");
    assert_eq!(Recipe::default().to_toml(), text);
    assert_eq!(resolve(&Sources::default()), Ok(Recipe::default()));
}

#[test]
fn the_preset_bible_quick_is_the_default_recipe_key_for_key() {
    let preset = from(Some("bible-quick"), "", &[]);
    assert_eq!(preset.to_toml(), include_str!("defaults.toml"));
    assert_eq!((&preset, preset.hash()), (&Recipe::default(), Recipe::default().hash()));
}

#[test]
fn the_preset_bible_small_is_the_former_default_key_for_key() {
    let preset = from(Some("bible-small"), "", &[]);
    let former = from(None, IDENTITY, &["train.steps=600", "optim.warmup_steps=60"]);
    assert_eq!(preset.identity_text(), former.identity_text());
    assert_eq!(preset, former, "nor does any key of the layout differ");
}

#[test]
fn every_default_that_is_not_derived_is_in_the_recipe() {
    let text = Recipe::default().identity_text();
    for doc in describe_keys() {
        let how = ["run.", "parallel.", "offload.", "checkpoint.", "telemetry.", "emulate."];
        let is_how = how.iter().any(|how| doc.name.starts_with(how));
        let other = [
            "momentum",
            "trust_coefficient",
            "drop_at",
            "drop_factor",
            "decay_fraction",
            "decay_shape",
        ];
        let is_other = other.iter().any(|name| doc.name == format!("optim.{name}"))
            || doc.name.starts_with("problem.")
            || doc.name == "model.activation"
            // Settings of GPT-NeoX.
            || ["model.rotary_pct", "model.parallel_residual", "model.gelu_approximate"]
                .contains(&doc.name)
            // The plain Llama was the only one of the first recipes.
            || ["model.qkv_bias", "model.qk_norm"].contains(&doc.name)
            || (doc.name.starts_with("model.rope_") && doc.name != "model.rope_theta")
            // Sequences of the first recipes were whole from the first step.
            || doc.name.starts_with("train.seqlen_")
            // The first recipes had no adapters.
            || doc.name.starts_with("finetune.")
            // Loss scale and wire format count only where they have an effect.
            || (doc.name.starts_with("precision.") && doc.name != "precision.compute")
            // All-reduce without compression was the only mode of the first recipes.
            || doc.name.starts_with("sync.")
            || doc.name.starts_with("compress.")
            || doc.name.starts_with("federated.")
            // One tensor shard was the only choice of the first recipes.
            || doc.name == "numerics.invariant_tensor_up_to"
            // Data keys are left out at the value from before they existed.
            || (doc.name.starts_with("data.")
                && !["data.source", "data.tokenizer", "data.validation"].contains(&doc.name));
        let shown = !is_how && !is_other && doc.default != "none";
        if shown && !doc.default.starts_with('=') {
            let value = doc.default.replace("1e-2", "0.01");
            assert!(text.contains(&format!("{} = {value}\n", doc.name)), "{}", doc.name);
        }
    }
}

#[test]
fn later_sources_win_over_earlier_ones() {
    let file = "[model]\nlayers = 3\n[train]\nsteps = 7";
    let recipe = from(Some("tiny"), file, &["train.steps=8", "train.steps=9"]);
    assert_eq!(recipe.model.width, 32, "the preset wins over the default");
    assert_eq!(recipe.model.layers, 3, "the file wins over the preset");
    assert_eq!(recipe.train.steps, 9, "the last argument wins over the file");
    assert_eq!(recipe.model.context, 32);
    assert_eq!(recipe.optim.name, OptimName::AdamW, "the default remains");
}

#[test]
fn a_file_may_write_keys_in_any_toml_form() {
    let tables = from(None, "[model]\nlayers = 1_0\nnorm_eps = 1\n", &[]);
    let dotted = from(None, "model.layers = 10\nmodel.norm_eps = 1.0", &[]);
    let inline = from(None, "model = { layers = 0xA, norm_eps = 1e0 }", &[]);
    let argument = from(None, "", &["model={layers = 10, norm_eps = 1}"]);
    assert_eq!((tables.model.layers, &tables), (10, &dotted));
    assert_eq!((&inline, &argument), (&dotted, &dotted));
}

#[test]
fn arguments_accept_bare_text_and_text_that_looks_like_a_number() {
    let recipe = from(
        None,
        "",
        &[
            "optim.schedule=linear",
            "run.isa = avx2",
            "run.dir=2024",
            "data.source=my texts/1.txt",
            "model.tied=true",
            "optim.lr=1",
        ],
    );
    assert_eq!(recipe.optim.schedule, LrSchedule::Linear);
    assert_eq!(recipe.run.isa, IsaChoice::Avx2);
    assert_eq!(recipe.run.dir, "2024");
    assert_eq!(recipe.data.source, Source::Path("my texts/1.txt".to_owned()));
    assert!(recipe.model.tied);
    assert!((recipe.optim.lr - 1.0).abs() < 1e-12);
}

#[test]
fn derived_defaults_follow_their_keys() {
    let llama = from(None, "", &["model.width=384", "model.heads=4", "train.steps=50"]);
    assert_eq!((llama.model.kv_heads, llama.model.ffn), (4, 1024));
    assert_eq!(llama.optim.warmup_steps, 5);
    let gpt2 = from(None, "", &["model.family=gpt2", "model.width=96"]);
    assert_eq!((gpt2.model.kv_heads, gpt2.model.ffn), (4, 384));
}

#[test]
fn a_printed_recipe_keeps_derived_values_derived() {
    let copy = from(None, &Recipe::default().to_toml(), &["model.width=384", "model.heads=8"]);
    assert_eq!((copy.model.kv_heads, copy.model.ffn), (8, 1024));
    let chosen = from(None, "", &["model.kv_heads=2", "model.ffn=192"]).to_toml();
    assert!(chosen.contains("\nkv_heads = 2\n"), "explicit values are printed:\n{chosen}");
    assert!(
        chosen.contains("\n# ffn = 192  # ="),
        "a value equal to the derived one is printed as derived"
    );
}

#[test]
fn a_model_preset_sets_only_the_model() {
    let recipe = from(Some("tiny"), "", &["model.preset=gpt2"]);
    assert_eq!((recipe.model.family, recipe.model.layers), (Family::Gpt2, 12));
    assert_eq!((recipe.model.vocab, recipe.model.context), (50257, 1024));
    assert_eq!(recipe.train.steps, 20, "the rest still comes from the underlying preset");
    assert!((recipe.optim.lr - 3e-3).abs() < 1e-12);

    let own = from(None, "model.preset = \"bench\"\nmodel.layers = 2", &["model.heads=12"]);
    assert_eq!((own.model.width, own.model.layers, own.model.heads), (384, 2, 12));
}

#[test]
fn a_model_preset_replaces_the_underlying_model() {
    let recipe = from(Some("gpt2"), "", &["model.preset=tiny"]);
    assert_eq!(recipe.model, from(Some("tiny"), "", &[]).model);
}

#[test]
fn preset_settings_without_effect_are_ignored() {
    let recipe = from(Some("bench"), "", &["optim.name=sgd", "model.family=gpt2"]);
    assert_eq!(recipe.optim.name, OptimName::Sgd);
    let default = Recipe::default();
    assert_eq!(recipe.optim.beta2.to_bits(), default.optim.beta2.to_bits());
    assert!(recipe.to_toml().contains("# beta1 is not a setting of optim.name = \"sgd\"\n"));
    assert!(!recipe.identity_text().contains("beta1"));
}

#[test]
fn microbatches_and_leaves_divide_exactly() {
    let sets = ["train.batch=48", "train.microbatch=2", "model.context=100"];
    let recipe = from(Some("bible-small"), "", &sets);
    assert_eq!(
        (recipe.num_microbatches(), recipe.num_leaves(), recipe.microbatches_per_leaf()),
        (24, 8, 3)
    );
    assert_eq!(recipe.tokens_per_step(), 4800);
    assert_eq!(recipe.model.head_dim(), 32);
}

#[test]
fn the_identity_excludes_the_layout() {
    let base = Recipe::default();
    let other_run =
        from(None, "", &["run.threads=7", "run.isa=portable", "run.device=cuda:1", "run.dir=x"]);
    assert_ne!(base, other_run);
    assert_eq!(base.identity_text(), other_run.identity_text());
    assert_eq!(base.hash(), other_run.hash());
    assert!(!base.identity_text().contains("run."));

    assert!(base.identity_text().lines().is_sorted());
    let reread = from(None, &base.identity_text(), &[]);
    assert_eq!(reread, base, "the identity text is itself a recipe");
}

#[test]
fn every_training_key_changes_the_hash() {
    let base = from(Some("bible-small"), "", &[]);
    for argument in [
        "model.family=gpt2",
        "model.layers=5",
        "model.width=384",
        "model.heads=3",
        "model.kv_heads=3",
        "model.ffn=500",
        "model.vocab=300",
        "model.context=300",
        "model.tied=true",
        "model.dropout=0.1",
        "model.norm_eps=1e-6",
        "model.rope_theta=500000",
        "data.source=a.txt",
        "data.validation=0.1",
        "train.steps=401",
        "train.batch=32",
        "train.microbatch=1",
        "train.seed=2",
        "train.eval_every=0",
        "train.eval_batches=1",
        "train.reduction=sum",
        "train.max_skipped=1",
        "optim.name=sgd",
        "optim.lr=1e-3",
        "optim.weight_decay=0",
        "optim.clip=0",
        "optim.warmup_steps=0",
        "optim.schedule=linear",
        "optim.final_lr_fraction=0",
        "optim.beta1=0.8",
        "optim.beta2=0.99",
        "optim.eps=1e-7",
        "numerics.invariant_up_to=4",
    ] {
        let changed = from(Some("bible-small"), "", &[argument]);
        assert_ne!(changed.hash(), base.hash(), "{argument}");
    }
}

/// All keys explicitly, so that a changed default does not change it.
const IDENTITY: &str = "\
data.source = \"bundled\"
data.tokenizer = \"byte\"
data.validation = 0.05
model.context = 256
model.dropout = 0.0
model.family = \"llama\"
model.ffn = 512
model.heads = 6
model.kv_heads = 6
model.layers = 4
model.norm_eps = 1e-5
model.rope_theta = 10000.0
model.tied = false
model.vocab = 256
model.width = 192
numerics.invariant_up_to = 8
optim.beta1 = 0.9
optim.beta2 = 0.95
optim.clip = 1.0
optim.eps = 1e-8
optim.final_lr_fraction = 0.1
optim.lr = 0.003
optim.lr_scaling = \"none\"
optim.name = \"adamw\"
optim.schedule = \"cosine\"
optim.warmup_steps = 40
optim.weight_decay = 0.1
precision.compute = \"f32\"
train.batch = 16
train.eval_batches = 8
train.eval_every = 100
train.max_skipped = 0
train.microbatch = 2
train.reduction = \"mean\"
train.seed = 1
train.steps = 400
";

#[test]
fn the_identity_and_its_hash_are_stable() {
    // A change here changes every recorded recipe hash.
    let recipe = from(None, IDENTITY, &[]);
    assert_eq!(recipe.identity_text(), IDENTITY);
    assert_eq!(recipe.hash(), "9aab9b3fac84aed631aae2965aec4f4a22be1975a119ce2d1f011e16202b3bd9");
}

#[test]
fn parts_of_the_descendants_of_llama_are_in_the_identity_only_when_used() {
    let plain = from(None, IDENTITY, &[]);
    for (sets, lines) in [
        (&["model.head_dim=64"][..], "model.head_dim = 64\n"),
        (&["model.qkv_bias=true"], "model.qkv_bias = true\n"),
        (&["model.qk_norm=true"], "model.qk_norm = true\n"),
        (
            &["model.rope_scaling=linear", "model.rope_factor=2"],
            "model.rope_factor = 2.0\nmodel.rope_scaling = \"linear\"\n",
        ),
        // Neither scaling within the context nor a window of all of it changes a bit.
        (&["model.rope_scaling=dynamic", "model.rope_factor=2"], ""),
        (&["model.sliding_window=256", "model.model_type=mistral"], ""),
        (&["model.sliding_window=255"], "model.sliding_window = 255\n"),
        (&["model.model_type=olmo2"], "model.model_type = \"olmo2\"\n"),
        (
            &["model.model_type=gemma2", "model.final_soft_cap=30"],
            "model.final_soft_cap = 30.0\nmodel.model_type = \"gemma2\"\n",
        ),
    ] {
        let recipe = from(None, IDENTITY, sets);
        assert_eq!(recipe.hash() == plain.hash(), lines.is_empty(), "{sets:?}");
        let (text, old) = (recipe.identity_text(), plain.identity_text());
        let added: Vec<_> = text.lines().filter(|line| !old.contains(line)).collect();
        assert_eq!(added, lines.lines().collect::<Vec<_>>(), "{sets:?}");
        assert_eq!(from(None, &recipe.to_toml(), &[]), recipe, "{sets:?}");
    }
}

#[test]
fn other_formats_use_the_names_of_the_recipe_file() {
    let recipe = from(None, "", &["model.dropout=0.1"]);
    let table = toml::Table::try_from(&recipe).expect("a map of tables");
    assert_eq!(table["model"]["dropout"].as_float(), Some(0.1));
    assert_eq!(table["optim"]["name"].as_str(), Some("adamw"));
    assert_eq!(table["run"]["save_optimizer"].as_bool(), Some(true));
    assert_eq!(table["train"]["steps"].as_integer(), Some(1400));
    assert!(table["optim"].get("momentum").is_none());
    assert_eq!(toml::to_string(&recipe).map(|text| from(None, &text, &[])), Ok(recipe));
}

#[test]
fn a_problem_has_samples_instead_of_text() {
    let recipe = from(Some("ridge"), "", &["problem.samples=500"]);
    assert_eq!((recipe.model.context, recipe.model.problem.samples), (1, 500));
    let text = recipe.to_toml();
    assert!(text.contains("[problem]\nsamples = 500\n") && !text.contains("[data]"), "{text}");
    assert!(text.contains("# context is not a setting of model.family = \"ridge\"\n"), "{text}");
    assert_eq!(from(None, &text, &[]), recipe, "the printed recipe is complete");
    assert_ne!(from(Some("ridge"), "", &[]).hash(), recipe.hash());
    assert!(recipe.identity_text().contains("problem.samples = 500\n"));
    assert!(
        !Recipe::default().identity_text().contains("problem."),
        "a language model has no problem keys"
    );
    let mixed = from(None, "", &["model.family=mlp"]);
    assert_eq!((mixed.model.layers, mixed.model.context), (4, 1), "a preset's context is not used");
}

#[test]
fn settings_of_text_and_of_problems_do_not_mix() {
    let failure = |sets: &[&str]| {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        resolve(&Sources { sets, ..Sources::default() }).unwrap_err().to_string()
    };
    assert_eq!(
        failure(&["model.family=mlp", "data.source=a.txt"]),
        "data.source = \"a.txt\" is not a setting of model.family = \"mlp\"; \
         remove it or set model.family = \"gpt2\", \"llama\", \"gpt_neox\" or \"bloom\""
    );
    assert_eq!(
        failure(&["problem.dim=5"]),
        "problem.dim = 5 is not a setting of model.family = \"llama\"; \
         remove it or set model.family = \"mlp\", \"quadratic\", \"ridge\" or \"logistic\""
    );
    assert_eq!(
        failure(&["model.family=ridge", "problem.dim=2000"]),
        "problem.dim = 2000 is too large for model.family = \"ridge\", whose optimum is computed; \
         try 1024"
    );
    assert_eq!(
        failure(&["model.family=logistic", "problem.dim=1024", "problem.samples=5000"]),
        "problem.samples = 5000 with problem.dim = 1024 is too large to compute the optimum; \
         try 4096"
    );
}

#[test]
fn number_formats_are_in_the_identity_only_where_they_have_an_effect() {
    let identity = |sets: &[&str]| {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a valid recipe");
        let text = recipe.identity_text();
        text.lines().filter(|line| line.starts_with("precision.")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(identity(&[]), "precision.compute = \"f32\"");
    for compute in ["bf16", "fp8"] {
        let sets = [&*format!("precision.compute={compute}")];
        assert_eq!(identity(&sets), format!("precision.compute = {compute:?}"));
    }
    let wire = ["precision.wire=bf16"];
    assert_eq!(identity(&wire), "precision.compute = \"f32\"\nprecision.wire = \"bf16\"");
    let fixed = ["precision.compute=fp16", "precision.loss_scale=1024"];
    let expected = "precision.compute = \"fp16\"\nprecision.loss_scale = 1024";
    assert_eq!(identity(&fixed), expected);
    let dynamic = "precision.compute = \"fp16\"\nprecision.loss_scale = \"dynamic\"\n\
                   precision.loss_scale_interval = 2000\nprecision.loss_scale_start = 65536";
    assert_eq!(identity(&["precision.compute=fp16"]), dynamic);
}
