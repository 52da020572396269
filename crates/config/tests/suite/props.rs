//! Properties of random recipes and random text.

use lockstep_config::{ConfigError, Recipe, Sources, resolve, units::Bytes};
use proptest::prelude::*;
use proptest::sample::select;

fn from_sets(sets: Vec<String>) -> Sources {
    Sources { sets, ..Sources::default() }
}

fn from_file(text: &str) -> Sources {
    Sources { file: Some(("a.toml".to_owned(), text.to_owned())), ..Sources::default() }
}

/// Arguments of a valid model.
fn valid_model() -> impl Strategy<Value = Vec<String>> {
    let shape = (1usize..=12, 1usize..=4, 1usize..=8, any::<bool>());
    let rest = (1usize..=9, 1usize..=5000, 256usize..=70000, 2usize..=5000, any::<bool>());
    let numbers = (0.0f64..0.99, 1e-9f64..1e-2, 1.0f64..1e6);
    (shape, rest, numbers).prop_map(
        |(
            (half_head_dim, groups, kv_heads, gpt2),
            (layers, ffn, vocab, context, tied),
            numbers,
        )| {
            let heads = if gpt2 { kv_heads } else { groups * kv_heads };
            let (dropout, norm_eps, rope_theta) = numbers;
            let mut sets = vec![
                format!("model.family={}", if gpt2 { "gpt2" } else { "llama" }),
                format!("model.layers={layers}"),
                format!("model.width={}", 2 * half_head_dim * heads),
                format!("model.heads={heads}"),
                format!("model.kv_heads={kv_heads}"),
                format!("model.ffn={ffn}"),
                format!("model.vocab={vocab}"),
                format!("model.context={context}"),
                format!("model.tied={tied}"),
                format!("model.dropout={dropout:?}"),
                format!("model.norm_eps={norm_eps:?}"),
            ];
            if !gpt2 {
                sets.push(format!("model.rope_theta={rope_theta:?}"));
            }
            sets
        },
    )
}

/// Arguments of valid data, training and run tables.
fn valid_training() -> impl Strategy<Value = Vec<String>> {
    let portions = (0u32..=6, 1usize..=5, 1usize..=9, 1u64..=1000, 0u64..=100);
    let rest = (0u64..=u64::MAX / 2, 0u64..=9, 1usize..=9, 1e-6f64..=0.5);
    let run = (0usize..=64, select(vec!["auto", "avx512", "avx2", "portable"]), any::<bool>());
    (portions, rest, run, "[^\u{0}]{1,20}", any::<String>()).prop_map(
        |((log_leaves, per_leaf, microbatch_size, steps, percent), rest, run, source, dir)| {
            let leaves = 1usize << log_leaves;
            let workers = 1 + run.0 % leaves;
            let (seed, eval_every, eval_batches, validation) = rest;
            let (threads, isa, save_optimizer) = run;
            vec![
                format!("numerics.invariant_up_to={leaves}"),
                format!("train.microbatch={microbatch_size}"),
                format!("train.batch={}", microbatch_size * leaves * per_leaf),
                format!("train.steps={steps}"),
                format!("optim.warmup_steps={}", steps * percent / 100),
                format!("train.seed={seed}"),
                format!("train.eval_every={eval_every}"),
                format!("train.eval_batches={eval_batches}"),
                format!("data.validation={validation:?}"),
                format!("data.source=x{source}"),
                format!("run.workers={workers}"),
                format!("run.threads={threads}"),
                format!("run.isa={isa}"),
                format!("run.save_optimizer={save_optimizer}"),
                format!("run.dir={dir}"),
            ]
        },
    )
}

/// Arguments of a valid optimizer.
fn valid_optimizer() -> impl Strategy<Value = Vec<String>> {
    let names = (select(vec!["sgd", "momentum", "adamw"]), select(vec!["constant", "cosine"]));
    let numbers = (1e-9f64..10.0, 0.0f64..1.0, 0.0f64..100.0, 0.0f64..1.0, 1e-12f64..1e-3);
    (names, numbers).prop_map(|((name, schedule), (lr, fraction, clip, decay, eps))| {
        let mut sets = vec![
            format!("optim.name={name}"),
            format!("optim.schedule={schedule}"),
            format!("optim.lr={lr:?}"),
            format!("optim.weight_decay={fraction:?}"),
            format!("optim.clip={clip:?}"),
        ];
        match name {
            "momentum" => sets.push(format!("optim.momentum={decay:?}")),
            "adamw" => sets.extend([
                format!("optim.beta1={decay:?}"),
                format!("optim.beta2={decay:?}"),
                format!("optim.eps={eps:?}"),
            ]),
            _ => {}
        }
        if schedule == "cosine" {
            sets.push(format!("optim.final_lr_fraction={fraction:?}"));
        }
        sets
    })
}

/// Arguments of a valid layout for any number of leaves here.
fn valid_layout() -> impl Strategy<Value = Vec<String>> {
    let names = (
        select(vec!["threads", "processes"]),
        select(vec!["auto", "tcp"]),
        select(vec!["none", "selective", "full", "every-1", "every-7"]),
    );
    let numbers = (0u8..=3, any::<u32>(), 0.01f64..1000.0, 0u64..=9, any::<bool>());
    (names, numbers, select(vec!["mean", "sum"])).prop_map(
        |((isolation, transport, recompute), numbers, reduction)| {
            let (zero, bytes, deadline, every, overlap) = numbers;
            let mut sets = vec![
                format!("run.isolation={isolation}"),
                format!("run.transport={transport}"),
                format!("run.deadline={deadline:?}"),
                format!("run.check_replicas_every={every}"),
                format!("parallel.zero={zero}"),
                format!("parallel.recompute={recompute}"),
                format!("parallel.bucket_bytes={bytes}"),
                format!("parallel.overlap={overlap}"),
                format!("train.reduction={reduction}"),
                format!("train.max_skipped={every}"),
            ];
            if transport == "tcp" {
                sets.push(format!("emulate.bandwidth={bytes}"));
            }
            sets
        },
    )
}

fn valid_recipe() -> impl Strategy<Value = Recipe> {
    (valid_model(), valid_training(), valid_optimizer(), valid_layout()).prop_map(|parts| {
        let sets = [parts.0, parts.1, parts.2, parts.3].concat();
        resolve(&from_sets(sets)).unwrap_or_else(|errors| panic!("{errors}"))
    })
}

/// Arguments for keys with rules between them, most of which break a rule.
fn tied_keys() -> impl Strategy<Value = Vec<String>> {
    let small = |key: &'static str, most: usize| {
        // From 2, which the value types of all keys here accept.
        proptest::option::of((2..=most).prop_map(move |value| format!("{key}={value}")))
    };
    let family = proptest::option::of(select(vec!["model.family=gpt2", "model.family=llama"]));
    let model = (small("model.width", 2000), small("model.heads", 40), small("model.kv_heads", 9));
    let train = (small("train.batch", 200), small("train.microbatch", 20));
    let leaves = (0u32..=6).prop_map(|log| format!("numerics.invariant_up_to={}", 1usize << log));
    let rest = (proptest::option::of(leaves), small("optim.warmup_steps", 900));
    let layout = (small("run.workers", 64), small("parallel.data", 64));
    (family, model, train, rest, layout, small("model.vocab", 400)).prop_map(
        |(family, model, train, rest, layout, vocab)| {
            let family = family.map(str::to_owned);
            let model = [family, model.0, model.1, model.2, vocab];
            let all = [train.0, train.1, rest.0, rest.1, layout.0, layout.1];
            model.into_iter().chain(all).flatten().collect()
        },
    )
}

/// Almost valid lines: headers, and keys with all sorts of values.
fn almost_valid_line() -> impl Strategy<Value = String> {
    let header = "\\[?\\[(model|run|x)\\]?\\]";
    let key = "(model\\.|optim\\.)?(layers|width|heads|lr|dir|preset)";
    let number = "-?[0-9_]{0,22}|[0-9.e+-]{0,8}|true|inf|nan";
    let other = "\"[^\"]*\"|'''|\\{.{0,9}\\}|\\[.{0,9}\\]";
    let pattern = format!("({header}|{key} ?= ?({number}|{other}))");
    proptest::string::string_regex(&pattern).expect("a regular expression")
}

/// Every fix that an error suggests, as arguments of `--set`.
fn fixes(error: &ConfigError) -> Vec<String> {
    let fixes = error.fix.strip_prefix("try ").expect("a fix to try");
    fixes
        .split(" or ")
        .flat_map(|part| part.split(", "))
        .map(|part| match part.split_once(" = ") {
            Some((key, value)) => format!("{key}={value}"),
            None => format!("{}={part}", error.key),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_printed_recipe_resolves_to_itself(recipe in valid_recipe()) {
        let reread = resolve(&from_file(&recipe.to_toml()));
        prop_assert_eq!(reread.as_ref(), Ok(&recipe));
    }

    #[test]
    fn the_identity_is_a_recipe_with_the_same_identity(recipe in valid_recipe()) {
        let reread = resolve(&from_file(&recipe.identity_text())).expect("it resolved before");
        prop_assert_eq!(reread.hash(), recipe.hash());
    }

    #[test]
    fn a_resolved_recipe_satisfies_the_rules(recipe in valid_recipe()) {
        let model = &recipe.model;
        prop_assert_eq!(model.head_dim() * model.heads, model.width);
        prop_assert_eq!(model.heads % model.kv_heads, 0);
        let microbatches = recipe.num_leaves() * recipe.microbatches_per_leaf();
        prop_assert_eq!(microbatches * recipe.train.microbatch_size, recipe.train.batch);
        prop_assert_eq!(recipe.leaf_shares().iter().sum::<usize>(), recipe.num_leaves());
        prop_assert_eq!(recipe.leaf_shares().len(), recipe.run.workers);
        prop_assert!(model.dropout < 1.0 && recipe.optim.warmup_steps <= recipe.train.steps);
    }

    #[test]
    fn every_suggested_fix_works(sets in tied_keys()) {
        let Err(errors) = resolve(&from_sets(sets.clone())) else { return Ok(()) };
        let others = |key: &str| -> Vec<String> {
            let others = errors.errors.iter().filter(|error| error.key != key);
            others.filter_map(|error| fixes(error).pop()).collect()
        };
        for error in &errors.errors {
            for fix in fixes(error) {
                let mended = [sets.clone(), others(&error.key), vec![fix.clone()]].concat();
                let outcome = resolve(&from_sets(mended));
                prop_assert!(outcome.is_ok(), "{error}\n{fix}: {}", outcome.unwrap_err());
            }
        }
    }

    #[test]
    fn no_text_makes_it_panic_and_every_error_is_one_line(
        name in any::<String>(),
        text in any::<String>(),
        preset in proptest::option::of(any::<String>()),
        sets in proptest::collection::vec(any::<String>(), 0..4),
    ) {
        let file = Some((name, text));
        let outcome = resolve(&Sources { file, preset, sets, ..Sources::default() });
        if let Err(errors) = outcome {
            prop_assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }

    #[test]
    fn no_almost_valid_text_makes_it_panic(
        lines in proptest::collection::vec(almost_valid_line(), 0..6),
    ) {
        let sources = Sources { sets: lines.clone(), ..from_file(&lines.join("\n")) };
        if let Err(errors) = resolve(&sources) {
            prop_assert_eq!(errors.to_string().lines().count(), errors.errors.len());
        }
    }

    #[test]
    fn whole_bytes_read_back(bytes in any::<u64>(), text in any::<String>()) {
        prop_assert_eq!(bytes.to_string().parse(), Ok(Bytes(bytes)));
        let _ = text.parse::<Bytes>();
    }
}

#[test]
fn deep_nesting_is_refused() {
    for text in [
        format!("{} = 1", vec!["a"; 50_000].join(".")),
        format!("[{}]\nb = 1", vec!["a"; 50_000].join(".")),
        format!("a = {}", "[".repeat(50_000)),
        format!("a = {}", "{a = ".repeat(50_000)),
    ] {
        assert!(resolve(&from_file(&text)).is_err());
        assert!(resolve(&from_sets(vec![text])).is_err());
    }
}
