//! The exact messages of invalid recipes.

use lockstep_config::{Blame, ConfigErrors, Origin, Sources, resolve};

/// The messages for a list of `--set` arguments on top of a fixed recipe, one a line.
fn sets(arguments: &[&str]) -> String {
    failure(&Sources { sets: owned(arguments), ..bible_small() }).to_string()
}

/// A preset, whose values in the messages outlive a change of the defaults.
fn bible_small() -> Sources {
    Sources { preset: Some("bible-small".to_owned()), ..Sources::default() }
}

/// The messages for a recipe file, one a line.
fn file(text: &str) -> String {
    failure(&with_file(text)).to_string()
}

fn with_file(text: &str) -> Sources {
    Sources { file: Some(("a.toml".to_owned(), text.to_owned())), ..bible_small() }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

fn failure(sources: &Sources) -> ConfigErrors {
    match resolve(sources) {
        Ok(recipe) => panic!("resolved:\n{}", recipe.to_toml()),
        Err(errors) => errors,
    }
}

#[test]
fn a_wrong_type_shows_the_value_and_a_valid_one() {
    assert_eq!(
        sets(&["model.layers=four"]),
        "model.layers = \"four\" is text where an integer is needed; try 4"
    );
    assert_eq!(
        sets(&["train.steps=1e3"]),
        "train.steps = 1e3 is a float where an integer is needed; try 1000"
    );
    assert_eq!(
        sets(&["model.layers=[1, 2]"]),
        "model.layers = [1, 2] is a list where an integer is needed; try 4"
    );
    assert_eq!(
        sets(&["model.tied=yes"]),
        "model.tied = \"yes\" is text where true or false is needed; try false"
    );
    assert_eq!(
        sets(&["optim.lr=fast"]),
        "optim.lr = \"fast\" is text where a number is needed; try 0.003"
    );
    assert_eq!(
        file("optim.clip = 2024-01-01"),
        "a.toml:1: optim.clip = 2024-01-01 is a date where a number is needed; try 1.0"
    );
    assert_eq!(
        file("data.source = 4"),
        "a.toml:1: data.source = 4 is an integer where text in quotes is needed; try \"bundled\""
    );
    assert_eq!(
        file("model.family = 3"),
        "a.toml:1: model.family = 3 is an integer where \"gpt2\", \"llama\", \"gpt_neox\", \
         \"bloom\", \"mlp\", \"quadratic\", \"ridge\" or \"logistic\" is needed; \
         try \"llama\""
    );
    assert_eq!(
        file("model.layers.x = 3"),
        "a.toml:1: model.layers = {...} is a table where an integer is needed; try 4"
    );
}

#[test]
fn the_fix_of_a_wrong_type_is_the_value_of_the_preset() {
    let preset = Some("tiny".to_owned());
    let sources = Sources { preset, sets: owned(&["model.width=wide"]), ..Sources::default() };
    assert_eq!(
        failure(&sources).to_string(),
        "model.width = \"wide\" is text where an integer is needed; try 32"
    );
}

#[test]
fn a_value_out_of_range_shows_the_range() {
    for (argument, message) in [
        ("model.layers=0", "model.layers = 0 must be between 1 and 1024; try 1"),
        ("model.context=1", "model.context = 1 must be between 2 and 1048576; try 2"),
        ("train.seed=-1", "train.seed = -1 must be between 0 and 9223372036854775807; try 0"),
        ("model.dropout=1", "model.dropout = 1 must be at least 0 and below 1; try 0.0"),
        ("model.dropout=-0.5", "model.dropout = -0.5 must be at least 0 and below 1; try 0.0"),
        ("optim.lr=0", "optim.lr = 0 must be above 0 and at most 1000; try 0.003"),
        ("optim.lr=nan", "optim.lr = nan must be above 0 and at most 1000; try 0.003"),
        ("data.validation=0", "data.validation = 0 must be above 0 and at most 0.5; try 0.05"),
        ("data.validation=0.6", "data.validation = 0.6 must be above 0 and at most 0.5; try 0.5"),
        ("data.source=", "data.source = \"\" must not be empty; try \"bundled\""),
        (
            "numerics.invariant_up_to=3",
            "numerics.invariant_up_to = 3 must be a power of two from 1 to 64; try 2 or 4",
        ),
        (
            "numerics.invariant_up_to=128",
            "numerics.invariant_up_to = 128 must be a power of two from 1 to 64; try 64",
        ),
    ] {
        assert_eq!(sets(&[argument]), message);
    }
}

#[test]
fn an_unknown_choice_suggests_the_nearest() {
    for (argument, message) in [
        (
            "model.family=lama",
            "model.family = \"lama\" is not one of gpt2, llama, gpt_neox, bloom, mlp, \
             quadratic, ridge, logistic; try \"llama\"",
        ),
        (
            "model.family=rwkv",
            "model.family = \"rwkv\" is not one of gpt2, llama, gpt_neox, bloom, mlp, \
             quadratic, ridge, logistic; try \"llama\"",
        ),
        (
            "optim.name=adamm",
            "optim.name = \"adamm\" is not one of sgd, momentum, nesterov, adam, adamw, lars, \
             lamb, lion, muon, schedule-free-adamw, adafactor, adamw-8bit; try \"adam\"",
        ),
        (
            "data.order=sequental",
            "data.order = \"sequental\" is not one of random, sequential; try \"sequential\"",
        ),
        (
            "train.microbatch=many",
            "train.microbatch = \"many\" is text where an integer or \"auto\" is needed; try 2",
        ),
        (
            "precision.wire=fp8",
            "precision.wire = \"fp8\" is not one of f32, bf16, fp16; try \"f32\"",
        ),
        (
            "precision.compute=f16",
            "precision.compute = \"f16\" is not one of f32, bf16, fp16, fp8; try \"fp16\"",
        ),
    ] {
        assert_eq!(sets(&[argument]), message);
    }
}

#[test]
fn an_unknown_key_suggests_the_nearest() {
    for (argument, message) in [
        ("model.layer=2", "model.layer = 2 is not a known key; did you mean model.layers?"),
        ("modle.layers=2", "modle.layers = 2 is not a known key; did you mean model.layers?"),
        ("layers=2", "layers = 2 is not a known key; did you mean model.layers?"),
        ("sync.server=2", "sync.server = 2 is not a known key; did you mean sync.servers?"),
        (
            "train.batch_size=2",
            "train.batch_size = 2 is not a known key; did you mean train.batch?",
        ),
        ("train.lr=2", "train.lr = 2 is not a known key; did you mean optim.lr?"),
        (
            "parallel.schedul=1f1b",
            "parallel.schedul = \"1f1b\" is not a known key; did you mean parallel.schedule?",
        ),
        ("warp.factor=2", "warp.factor = 2 is not a known key; `lockstep config` lists every key"),
    ] {
        assert_eq!(sets(&[argument]), message);
    }
    assert_eq!(
        file("[models]\n[data]\n"),
        "a.toml:1: models = {...} is not a known key; did you mean model?"
    );
}

#[test]
fn a_value_in_place_of_a_table_is_shown_an_example() {
    let message = "where a table of keys is needed; try model.family = \"llama\"";
    assert_eq!(sets(&["model=4"]), format!("model = 4 is an integer {message}"));
    assert_eq!(
        file("[[model]]\nlayers = 4"),
        format!("a.toml:1: model = [[model]] is a list {message}")
    );
}

#[test]
fn an_unknown_preset_names_the_known_ones() {
    let sources = Sources {
        preset: Some("bibel".into()),
        sets: owned(&["model.heads=5", "model.layers=0"]),
        ..Sources::default()
    };
    assert_eq!(
        failure(&sources).to_string(),
        "preset = \"bibel\" is not known; \
         try bible-quick, bible-small, tiny, wide-odd, gpt2-small-bytes, gpt2-medium-bytes, bench, \
         gpt2, methods, digits, federated, quadratic, ridge or logistic\n\
         model.layers = 0 must be between 1 and 1024; try 1",
        "rules between keys wait until the preset is known"
    );
    let known = "bible-quick, bible-small, tiny, wide-odd, gpt2-small-bytes, gpt2-medium-bytes, \
                 bench, gpt2, methods, digits, federated, quadratic, ridge, logistic";
    assert_eq!(
        sets(&["model.preset=tinny"]),
        format!("model.preset = \"tinny\" is not one of {known}; try \"tiny\"")
    );
    assert_eq!(
        sets(&["model.preset=large"]),
        format!("model.preset = \"large\" is not one of {known}; try \"bible-quick\"")
    );
}

#[test]
fn text_that_is_not_toml_shows_the_line() {
    let fix = "write key = value, with text in quotes";
    assert_eq!(
        file("[model]\nlayers 4"),
        format!("a.toml:2: `layers 4` is not valid TOML (key with no value, expected `=`); {fix}")
    );
    assert_eq!(
        file("[model]\nlayers = 4\nlayers = 5"),
        format!("a.toml:3: `layers = 5` is not valid TOML (duplicate key); {fix}")
    );
    assert_eq!(
        file("[model\nlayers = 4"),
        format!("a.toml:1: `[model` is not valid TOML (unclosed table, expected `]`); {fix}")
    );
}

#[test]
fn an_argument_without_a_value_is_shown_the_form() {
    for argument in ["train.steps", "=4", ""] {
        let subject = format!("--set {argument}");
        assert_eq!(
            sets(&[argument]),
            format!("{subject} is not of the form key=value; try --set train.steps=100")
        );
    }
}

#[test]
fn heads_divide_the_width_into_heads_of_a_usable_size() {
    for (arguments, message) in [
        (
            &["model.heads=5"][..],
            "model.heads = 5 does not divide model.width = 192; try 1, 2, 3, 4 or 6",
        ),
        (
            &["model.width=256"],
            "model.heads = 6 does not divide model.width = 256; try 1, 2, 4, 8 or 16",
        ),
        (
            &["model.heads=5", "model.kv_heads=2"],
            "model.heads = 5 does not divide model.width = 192; try 2, 4, 6, 8 or 12",
        ),
        (
            &["model.heads=64"],
            "model.heads = 64 makes heads of 3 with model.width = 192, \
             and llama needs an even head size; try 16, 24, 32, 48 or 96",
        ),
        (
            &["model.width=4096", "model.heads=4"],
            "model.heads = 4 makes heads of 1024 with model.width = 4096, \
             and the maximum is 256; try 16, 32, 64, 128 or 256",
        ),
        (
            &["model.width=257"],
            "model.width = 257 is not a multiple of model.heads = 6; try 252 or 264",
        ),
        (
            &["model.width=15", "model.heads=5"],
            "model.width = 15 makes heads of 3 with model.heads = 5, \
             and llama needs an even head size; try 10 or 20",
        ),
    ] {
        assert_eq!(sets(arguments), message);
    }
    let gpt2 = ["model.family=gpt2", "model.heads=64"];
    assert!(
        resolve(&Sources { sets: owned(&gpt2), ..bible_small() }).is_ok(),
        "an odd head size is fine without rotary positions"
    );
}

#[test]
fn descendants_of_llama_are_checked_by_their_own_rules() {
    for (arguments, message) in [
        (
            &["model.head_dim=33"][..],
            "model.head_dim = 33 is odd, and rotary positions turn pairs of elements; try 32",
        ),
        (
            &["model.rope_scaling=yarn"],
            "model.rope_scaling = \"yarn\" needs the sequence length before the scaling; \
             try model.rope_original_context = 256",
        ),
        (
            &[
                "model.rope_scaling=llama3",
                "model.rope_original_context=64",
                "model.rope_high_freq_factor=1",
            ],
            "model.rope_high_freq_factor = 1.0 is not above model.rope_low_freq_factor = 1.0; \
             try 4",
        ),
        (
            &["model.rope_factor=2"],
            "model.rope_factor = 2.0 is not a setting of model.rope_scaling = \"none\"; remove \
             it or set model.rope_scaling = \"linear\", \"dynamic\", \"llama3\" or \"yarn\"",
        ),
        (
            &["model.attention_soft_cap=50"],
            "model.model_type has no model.query_scalar, model.attention_soft_cap or \
             model.final_soft_cap; try gemma2",
        ),
        (
            &["model.model_type=olmo2", "parallel.tensor=2", "run.workers=2"],
            "model.model_type = \"olmo2\" normalises all queries together, and 2 tensor-parallel \
             shards have a part each; try without parallel.tensor",
        ),
        (
            &["model.model_type=phi3", "finetune.lora_rank=4"],
            "model.model_type = \"phi3\" has fused tensors, and adapters are of separate ones; \
             try finetune.lora_rank = 0",
        ),
        (
            &["model.model_type=qwen3", "model.qkv_bias=true"],
            "model.model_type = \"qwen3\" does not fit model.qkv_bias, model.qk_norm \
             and model.sliding_window; try qwen2",
        ),
    ] {
        assert_eq!(sets(arguments), message);
    }
    // A size of its own needs no division.
    let own = ["model.heads=5", "model.head_dim=64", "model.model_type=mistral"];
    let recipe = resolve(&Sources { sets: owned(&own), ..bible_small() }).expect("it is valid");
    assert_eq!((recipe.model.head_dim(), recipe.model.width), (64, 192));
}

#[test]
fn key_heads_divide_the_heads() {
    assert_eq!(
        sets(&["model.kv_heads=4"]),
        "model.kv_heads = 4 does not divide model.heads = 6; try 1, 2, 3 or 6"
    );
    assert_eq!(
        sets(&["model.family=gpt2", "model.kv_heads=2"]),
        "model.kv_heads = 2 needs model.family = \"llama\", \
         because gpt2 has no grouped-query attention; try 6"
    );
}

#[test]
fn the_vocabulary_holds_every_byte() {
    assert_eq!(
        sets(&["model.vocab=100"]),
        "model.vocab = 100 is below the 256 tokens of data.tokenizer = \"byte\"; try 256"
    );
}

#[test]
fn the_batch_is_whole_microbatches_and_whole_leaves() {
    for (arguments, message) in [
        (
            &["train.batch=15"][..],
            "train.batch = 15 is not a multiple of train.microbatch = 2; try 16",
        ),
        (
            &["train.microbatch=3"],
            "train.microbatch = 3 does not divide train.batch = 16; try 1 or 2",
        ),
        (
            &["train.microbatch=3", "train.batch=4"],
            "train.batch = 4 is not a multiple of train.microbatch = 3; try 24",
        ),
        (
            &["train.batch=4"],
            "train.batch = 4 makes 2 micro-batches of train.microbatch = 2, \
             which numerics.invariant_up_to = 8 does not divide; \
             try train.batch = 16 or numerics.invariant_up_to = 2",
        ),
        (
            &["train.batch=2"],
            "train.batch = 2 makes 1 micro-batch of train.microbatch = 2, \
             which numerics.invariant_up_to = 8 does not divide; \
             try train.batch = 16 or numerics.invariant_up_to = 1",
        ),
        (
            &["train.batch=40"],
            "train.batch = 40 makes 20 micro-batches of train.microbatch = 2, \
             which numerics.invariant_up_to = 8 does not divide; \
             try train.batch = 32 or numerics.invariant_up_to = 4",
        ),
    ] {
        assert_eq!(sets(arguments), message);
    }
}

#[test]
fn the_warm_up_ends_within_the_run() {
    assert_eq!(
        sets(&["train.steps=30", "optim.warmup_steps=40"]),
        "optim.warmup_steps = 40 is more than train.steps = 30; try 3"
    );
}

#[test]
fn optimizers_refuse_what_they_cannot_compute_exactly() {
    for (arguments, message) in [
        (
            &["optim.name=schedule-free-adamw", "optim.schedule=cosine"][..],
            "optim.name = \"schedule-free-adamw\" averages weights in place of a schedule, and \
             optim.schedule = \"cosine\"; try optim.schedule = \"constant\" or \
             optim.name = \"adamw\"",
        ),
        (
            &["optim.name=muon", "sync.mode=local-sgd", "sync.local_steps=2"],
            "optim.name = \"muon\" orthogonalises matrices of gradients that all workers have \
             summed, and sync.mode = \"local-sgd\"; try sync.mode = \"all-reduce\" or \
             optim.name = \"adamw\"",
        ),
        (
            &["optim.name=adafactor", "sync.mode=local-sgd", "sync.local_steps=2"],
            "optim.name = \"adafactor\" factors second moments of gradients that all workers have \
             summed, and sync.mode = \"local-sgd\"; try sync.mode = \"all-reduce\" or \
             optim.name = \"adamw\"",
        ),
        (
            &["optim.name=adafactor", "offload.state=file"],
            "optim.name = \"adafactor\" keeps moments of rows and columns, too few to offload, and \
             offload.state = \"file\"; try offload.state = \"none\" or optim.name = \"adamw\"",
        ),
    ] {
        assert_eq!(sets(arguments), message);
    }
}

#[test]
fn settings_without_effect_are_refused() {
    for (arguments, message) in [
        (
            &["optim.momentum=0.9"][..],
            "optim.momentum = 0.9 is not a setting of optim.name = \"adamw\"; \
             remove it or set optim.name = \"momentum\", \"nesterov\", \"lars\" or \"muon\"",
        ),
        (
            &["optim.name=sgd", "optim.beta1=0.8", "optim.eps=1e-6"],
            "optim.beta1 = 0.8 is not a setting of optim.name = \"sgd\"; \
             remove it or set optim.name = \"adam\", \"adamw\", \"lamb\", \"lion\", \
             \"muon\", \"schedule-free-adamw\" or \"adamw-8bit\"\n\
             optim.eps = 1e-6 is not a setting of optim.name = \"sgd\"; \
             remove it or set optim.name = \"adam\", \"adamw\", \"lamb\", \"muon\", \
             \"schedule-free-adamw\" or \"adamw-8bit\"",
        ),
        (
            &["optim.name=momentum", "optim.beta2=0.8"],
            "optim.beta2 = 0.8 is not a setting of optim.name = \"momentum\"; \
             remove it or set optim.name = \"adam\", \"adamw\", \"lamb\", \"lion\", \
             \"muon\", \"schedule-free-adamw\" or \"adamw-8bit\"",
        ),
        (
            &["model.family=gpt2", "model.rope_theta=500"],
            "model.rope_theta = 500.0 is not a setting of model.family = \"gpt2\"; \
             remove it or set model.family = \"llama\" or \"gpt_neox\"",
        ),
        (
            &["model.family=gpt_neox", "finetune.lora_rank=8"],
            "finetune.lora_rank = 8 is not a setting of model.family = \"gpt_neox\"; \
             remove it or set model.family = \"llama\"",
        ),
        (
            &["model.family=gpt_neox", "model.kv_heads=2"],
            "model.kv_heads = 2 needs model.family = \"llama\", because gpt_neox has no \
             grouped-query attention; try 6",
        ),
        (
            &["model.family=gpt_neox", "model.rotary_pct=0.1"],
            "model.rotary_pct = 0.1 turns 3 of the 32 elements of a head, and rotary positions \
             turn pairs; try 0.125",
        ),
        (
            &["optim.schedule=constant", "optim.final_lr_fraction=0.2"],
            "optim.final_lr_fraction = 0.2 is not a setting of optim.schedule = \"constant\"; \
             remove it or set optim.schedule = \"cosine\", \"linear\" or \"wsd\"",
        ),
    ] {
        assert_eq!(sets(arguments), message);
    }
}

#[test]
fn all_errors_come_together_in_the_order_of_the_text() {
    let mut sources = with_file(
        "[train]\nsteps = \"many\"\nbatch = 4\n\n[model]\nwidht = 96\nheads = 7\nlayers = 0\n",
    );
    sources.sets = owned(&["optim.momentum=0.5"]);
    let errors = failure(&sources);
    assert_eq!(
        errors.to_string(),
        "a.toml:2: train.steps = \"many\" is text where an integer is needed; try 600\n\
         a.toml:6: model.widht = 96 is not a known key; did you mean model.width?\n\
         a.toml:8: model.layers = 0 must be between 1 and 1024; try 1\n\
         a.toml:7: model.heads = 7 does not divide model.width = 192; try 2, 3, 4, 6 or 8\n\
         a.toml:3: train.batch = 4 makes 2 micro-batches of train.microbatch = 2, which \
         numerics.invariant_up_to = 8 does not divide; \
         try train.batch = 16 or numerics.invariant_up_to = 2\n\
         optim.momentum = 0.5 is not a setting of optim.name = \"adamw\"; \
         remove it or set optim.name = \"momentum\", \"nesterov\", \"lars\" or \"muon\"",
    );
    assert_eq!(errors.blame(), Blame::User);
    let last = &errors.errors[5];
    assert_eq!((last.key.as_str(), last.value.as_str()), ("optim.momentum", "0.5"));
    assert_eq!(last.origin, Origin::Set);
}

#[test]
fn long_and_strange_values_stay_one_line() {
    let message = sets(&[&format!("model.layers={}", "x\n".repeat(1000))]);
    assert_eq!(message.lines().count(), 1);
    assert!(message.len() < 200, "{message}");
    assert_eq!(
        file("\"a\\nb\" = \"\"\"\nx\ny\"\"\""),
        "a.toml:1: a b = \"x\\ny\" is not a known key; `lockstep config` lists every key"
    );
}

#[test]
fn the_name_of_the_file_is_kept_whole() {
    let name = format!("{}/my  recipe.toml", "folder".repeat(30));
    let file = Some((name.clone(), "[model]\nlayers = 0".to_owned()));
    assert_eq!(
        failure(&Sources { file, ..Sources::default() }).to_string(),
        format!("{name}:2: model.layers = 0 must be between 1 and 1024; try 1")
    );
}
