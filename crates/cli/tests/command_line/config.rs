//! `lockstep config`: one key, the search, names of other frameworks, and the DeepSpeed import.

use crate::process::Folder;
use serde_json::Value;

fn refusal(folder: &Folder, arguments: &[&str]) -> String {
    let finished = folder.run(arguments);
    assert_eq!(finished.code, Some(2), "{arguments:?}: {}", finished.stderr);
    finished.stderr
}

#[test]
fn a_key_is_shown_with_its_value_in_a_recipe() {
    let folder = Folder::new();
    folder.write("my.toml", b"[parallel]\nzero = 2\n");
    let shown = folder.succeed(&["config", "parallel.zero"]).stdout;
    assert!(shown.starts_with("parallel.zero\n    ZeRO stage: "), "{shown}");
    for row in ["value      0 (the default)", "allowed    integer from 0 to 3", "zero_stage"] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    let recipes: [&[&str]; 4] = [
        &["config", "parallel.zero", "my.toml"],
        &["config", "my.toml", "parallel.zero"],
        &["config", "parallel.zero", "--set", "parallel.zero=2"],
        &["config", "ZeRO-Stage", "my.toml"],
    ];
    for arguments in recipes {
        let shown = folder.succeed(arguments).stdout;
        assert!(shown.contains("    value      2\n"), "{arguments:?}: {shown}");
    }
    let json = folder.json(&["config", "parallel.zero", "my.toml", "--json"]);
    assert_eq!((&json["kind"], &json["key"]["value"]), (&"key".into(), &"2".into()));
    assert_eq!(json["key"]["name"], "parallel.zero");
    let synonyms = json["key"]["synonyms"].as_array().expect("a list");
    assert!(synonyms.contains(&Value::from("fsdp")), "{json}");
}

#[test]
fn tables_and_names_of_other_frameworks_are_shown() {
    let folder = Folder::new();
    let table = folder.succeed(&["config", "parallel"]).stdout;
    assert!(
        table.starts_with("[parallel]  ") && table.contains("\nparallel.tensor = 1 "),
        "{table}"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let tp = folder.succeed(&["config", "tp"]).stdout;
    assert!(tp.starts_with("tp: parallel.tensor\n\nparallel.tensor\n"), "{tp}");
    let diloco = folder.succeed(&["config", "diloco"]).stdout;
    assert!(
        diloco.starts_with("diloco: sync.mode = \"local-sgd\" with sync.outer = \"nesterov\"\n"),
        "{diloco}"
    );
    let experts = folder.json(&["config", "ep", "--json"]);
    assert_eq!((&experts["kind"], &experts["keys"]), (&"synonym".into(), &Value::Array(vec![])));
    let error = refusal(&folder, &["config", "paralel"]);
    assert!(error.contains("neither a recipe file nor a key; try parallel"), "{error}");
    // A folder of that name is not a recipe.
    folder.write("data/text.txt", b"words");
    assert!(folder.succeed(&["config", "data"]).stdout.starts_with("[data]"));
}

#[test]
fn a_search_is_short_and_ranked() {
    let folder = Folder::new();
    let found = folder.succeed(&["config", "--search", "learning rate"]).stdout;
    let lines: Vec<&str> = found.lines().collect();
    assert!((1..=13).contains(&lines.len()), "{found}");
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{found}");
    let first = folder.succeed(&["config", "--search", "hidden_size"]).stdout;
    assert!(first.starts_with("model.width = "), "{first}");
    assert!(first.lines().next().is_some_and(|line| line.contains("(hidden_size)")), "{first}");
    let json = folder.json(&["config", "--search", "zero", "--search", "stage", "--json"]);
    assert_eq!(json[0]["name"], "parallel.zero");
    let error = refusal(&folder, &["config", "--search", "zzyzx"]);
    assert!(error.contains("no key has \"zzyzx\"") && error.contains("; try "), "{error}");
}

#[test]
fn a_name_of_another_framework_ends_the_error_with_the_key() {
    let folder = Folder::new();
    for (set, fix) in [
        ("tp=2", "did you mean parallel.tensor?"),
        ("parallel.tp=2", "did you mean parallel.tensor?"),
        ("precision=bf16", "try precision.compute = \"bf16\""),
        ("sync.mode=diloco", "try sync.mode = \"local-sgd\" with sync.outer = \"nesterov\""),
    ] {
        for command in ["train", "config", "plan"] {
            let error = refusal(&folder, &[command, "--set", set]);
            assert!(error.trim_end().ends_with(fix), "{command} {set}: {error}");
        }
    }
}

#[test]
fn a_deepspeed_configuration_becomes_a_recipe_that_trains() {
    let folder = Folder::new();
    let text = r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.002}},
        "zero_optimization": {"stage": 1, "sub_group_size": 1e9}, "gradient_clipping": 0.7}"#;
    folder.write("ds_config.json", text.as_bytes());
    let import = ["config", "import", "ds_config.json"];
    let finished = folder.succeed(&import);
    assert!(finished.stdout.contains("clip = 0.7  # gradient_clipping"), "{}", finished.stdout);
    assert_eq!(
        finished.stderr,
        "not imported: zero_optimization.sub_group_size = 1000000000.0: \
         the optimizer updates whole buckets\n"
    );
    let json = folder.json(&[&import[..], &["--json"]].concat());
    assert_eq!(json["unmapped"][0]["path"], "zero_optimization.sub_group_size");
    assert_eq!(json["toml"], finished.stdout);
    let quiet = folder.succeed(&[&import[..], &["--out", "my.toml"]].concat());
    assert!(quiet.stdout.is_empty(), "{}", quiet.stdout);
    let written = String::from_utf8(folder.read("my.toml")).expect("text");
    assert_eq!(written, finished.stdout);
    let error = refusal(&folder, &[&import[..], &["--out", "my.toml"]].concat());
    assert!(error.contains("my.toml exists"), "{error}");

    let tiny = ["--set", "model.preset=tiny", "--set", "train.steps=2", "--set", "run.threads=1"];
    let run = ["--set", "run.isolation=threads", "--set", "data.tokenizer=byte"];
    let finished = folder.run(&[&["train", "my.toml"][..], &tiny, &run].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);

    folder.write("broken.json", b"{\n\"train_batch_size\": }");
    let error = refusal(&folder, &["config", "import", "broken.json"]);
    assert!(error.contains("broken.json: line 2: not valid JSON"), "{error}");
    let error = refusal(&folder, &["config", "import", "missing.json"]);
    assert!(error.contains("missing.json"), "{error}");
}

#[test]
fn devices_are_named_in_any_case_and_short() {
    let folder = Folder::new();
    let plan = |cluster: &str| {
        let json = folder.json(&["plan", "--model", "gpt2", "--cluster", cluster, "--json"]);
        json["devices"].clone()
    };
    assert_eq!(plan("256xh100"), plan("256xH100-80GB"));
    let error = refusal(&folder, &["plan", "--model", "gpt2", "--cluster", "8xV100"]);
    assert!(error.contains("try 8xv100-32gb or 8xv100-16gb"), "{error}");
    let error = refusal(&folder, &["plan", "--model", "gpt2", "--cluster", "H100"]);
    assert!(error.contains("has no number of devices; try 8xh100-80gb"), "{error}");
    folder.write("cluster.toml", b"device = \"NVIDIA H100\"\ndevices = 16\n");
    assert_eq!(plan("cluster.toml"), Value::from(16));
    let size = ["plan", "size", "--model", "gpt2", "--tokens", "1e9", "--devices", "8"];
    folder.succeed(&[&size[..], &["--device", "A100"]].concat());
    let error = refusal(&folder, &[&size[..], &["--device", "tpu"]].concat());
    assert!(error.contains("is several devices; try tpu-v4 or tpu-v5p"), "{error}");
}

#[test]
fn flags_of_other_frameworks_end_with_the_key_or_flag_to_write() {
    let folder = Folder::new();
    for (arguments, expected) in [
        ("train --tp 2", "lockstep train has no flag --tp; write --set parallel.tensor=2"),
        ("train --tp=2", "lockstep train has no flag --tp; write --set parallel.tensor=2"),
        ("train --fp16", "lockstep train has no flag --fp16; write --set precision.compute=fp16"),
        ("train --learning-rate 1e-3", "no flag --learning-rate; write --lr 1e-3"),
        ("train --max_steps=9", "no flag --max_steps; write --steps 9"),
        ("train --hidden_size 256", "no flag --hidden_size; write --set model.width=256"),
        ("train --layers 4", "no flag --layers; write --set model.layers=4"),
        (
            "inspect --d-model 64",
            "lockstep inspect has no flag --d-model; write --set model.width=64",
        ),
        (
            "plan memory --tp 2",
            "lockstep plan memory has no flag --tp; write --set parallel.tensor=2",
        ),
        ("train --epochs 3", "lockstep train has no flag --epochs; write --set train.epochs=3"),
        ("train --train-samples 9", "not in samples; use train.steps = samples / train.batch"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let finished = folder.run(&arguments);
        assert_eq!(finished.code, Some(2), "{arguments:?}: {finished:?}");
        let error = finished.stderr.trim_end();
        assert!(error.starts_with("error: ") && error.lines().count() == 1, "{error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        let is_setting = expected.contains("; write ");
        assert!(!is_setting || error.ends_with(expected), "{arguments:?}: {error}");
    }
    // A typing error of an own flag, an unknown word, and a command without settings.
    for arguments in [["train", "--stps"], ["train", "--zebra"], ["runs", "--tp"]] {
        let finished = folder.run(&arguments);
        assert_eq!(finished.code, Some(2), "{arguments:?}: {finished:?}");
        assert!(finished.stderr.contains("unexpected argument"), "{arguments:?}: {finished:?}");
    }
    let similar = folder.run(&["train", "--stps", "3"]);
    assert!(similar.stderr.contains("--steps"), "{similar:?}");
}
