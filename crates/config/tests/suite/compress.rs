//! Gradient compression: defaults and refused combinations.

use lockstep_config::{CompressMethod, Recipe, Sources, resolve};

fn recipe(sets: &[&str]) -> Recipe {
    try_recipe(sets).unwrap_or_else(|errors| panic!("{errors}"))
}

fn try_recipe(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

#[test]
fn biased_methods_have_error_feedback() {
    for name in CompressMethod::NAMES.iter().filter(|name| **name != "none") {
        let method = format!("compress.method={name}");
        let sets = [method.as_str(), "optim.clip=0"];
        let compress = recipe(&sets).compress;
        let is_unbiased = ["bf16", "int8", "qsgd"].contains(name);
        assert_eq!(compress.error_feedback, !is_unbiased, "{name}");
        let without = [&sets[..], &["compress.error_feedback=false"]].concat();
        let refused = try_recipe(&without);
        assert_eq!(refused.is_err(), compress.is_biased(), "{name}: {refused:?}");
        if let Err(error) = refused {
            assert!(error.contains("compress.allow_biased = true"), "{error}");
            recipe(&[&without[..], &["compress.allow_biased=true"]].concat());
        }
    }
}

#[test]
fn one_bit_adam_sends_the_momentum_of_adam() {
    let refused = |sets: &[&str]| {
        let sets = [&["compress.method=one-bit-adam"], sets].concat();
        try_recipe(&sets).expect_err("it cannot work")
    };
    assert!(refused(&["optim.clip=1"]).contains("try optim.clip = 0"));
    assert!(refused(&["optim.clip=0", "compress.warmup_steps=0"]).contains("try 280"));
    assert!(refused(&["optim.name=sgd"]).contains("try optim.name = \"adamw\""));
    let recipe = recipe(&["compress.method=one-bit-adam", "optim.clip=0", "train.steps=100"]);
    assert_eq!(recipe.compress.warmup_steps, 20);
    assert!(!recipe.compress.is_on_in(19) && recipe.compress.is_on_in(20));
}

#[test]
fn compression_needs_whole_f32_gradients_in_every_step() {
    for (set, fix) in [
        ("parallel.zero=2", "try parallel.zero = 0"),
        ("parallel.pipeline=2", "try parallel.pipeline = 1"),
        ("sync.mode=local-sgd", "try sync.mode = \"all-reduce\""),
        ("precision.compute=fp16", "try precision.compute = \"bf16\""),
        ("precision.wire=fp16", "try precision.wire = \"f32\""),
    ] {
        let error = try_recipe(&["compress.method=int8", set]).expect_err("it cannot work");
        assert!(error.contains(fix), "{error}");
    }
}

#[test]
fn recipes_without_compression_keep_their_identity() {
    assert!(!Recipe::default().identity_text().contains("compress."));
    let few = recipe(&["compress.method=top-k"]);
    assert!(few.identity_text().contains("compress.ratio = 0.01"));
    assert!(few.layout_dependence().is_some_and(|reason| reason.contains("top-k")));
}

#[test]
fn overrides_set_one_value_of_their_method() {
    let with = |method: &str, rule: &str| {
        let (method, rule) =
            (format!("compress.method={method}"), format!("compress.overrides=[{rule}]"));
        try_recipe(&[method.as_str(), rule.as_str()])
    };
    with("top-k", "{match=\"*norm*\", dense=true}, {match=\"*\", ratio=0.1}").expect("valid");
    with("qsgd", "{match=\"*\", bits=8}").expect("valid");
    for (method, rule, fix) in [
        ("top-k", "{match=\"*\", bits=8}", "try ratio alone"),
        ("int8", "{match=\"*\", ratio=0.1}", "try dense = true alone"),
        ("power-sgd", "{match=\"*\"}", "try rank alone"),
        ("dgc", "{match=\"*\", ratio=0.1, dense=true}", "try ratio alone"),
    ] {
        let error = with(method, rule).expect_err("no effect");
        assert!(error.starts_with("compress.overrides[0]") && error.contains(fix), "{error}");
    }
}

#[test]
fn momentum_is_applied_once() {
    let sets = ["compress.method=dgc", "optim.name=sgd"];
    assert!((recipe(&sets).compress.momentum - 0.9).abs() < 1e-12);
    assert!(recipe(&["compress.method=dgc"]).compress.momentum == 0.0, "Adam has its own");
    let error = try_recipe(&["compress.method=dgc", "compress.momentum=0.5"]).expect_err("twice");
    assert!(error.contains("try 0.0, or optim.name"), "{error}");
}

#[test]
fn groups_have_equal_size() {
    let sets = ["compress.method=bf16", "run.workers=4"];
    recipe(&[&sets[..], &["compress.group_workers=2"]].concat());
    for size in ["compress.group_workers=3", "compress.group_workers=4"] {
        let error = try_recipe(&[&sets[..], &[size]].concat()).expect_err("no groups");
        assert!(error.contains("try 2"), "{error}");
    }
}

#[test]
fn servers_decode_messages_one_by_one() {
    let sets = ["sync.mode=parameter-server", "run.workers=2", "optim.clip=0"];
    for name in ["bf16", "fp16", "int8", "qsgd", "top-k", "sign"] {
        recipe(&[&sets[..], &[format!("compress.method={name}").as_str()]].concat());
    }
    let refused = |more: &[&str]| try_recipe(&[&sets[..], more].concat()).expect_err("refused");
    for name in ["random-k", "dgc", "one-bit-adam", "power-sgd"] {
        let error = refused(&[format!("compress.method={name}").as_str()]);
        assert!(error.contains("try sync.mode = \"all-reduce\""), "{error}");
    }
    let warm = refused(&["compress.method=top-k", "compress.warmup_steps=4"]);
    assert!(warm.contains("compress.warmup_steps"), "{warm}");
}
