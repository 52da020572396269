//! Hugging Face models: inspected, trained, converted and refused.

use crate::bad_input::refused;
use crate::process::Folder;
use std::path::PathBuf;

/// A scratch folder with the golden models.
fn with_models() -> Folder {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../harness/golden/huggingface");
    let world = lockstep_platform::real();
    for model in ["gpt2", "llama-sharded"] {
        for path in world.files().list(&golden.join(model)).expect("golden folders are committed") {
            let name = path.file_name().expect("a file").display().to_string();
            let bytes = world.files().read(&path).expect("it is readable");
            folder.write(&format!("{model}/{name}"), &bytes);
        }
    }
    folder
}

#[test]
fn a_foreign_model_is_inspected_converted_and_converted_back() {
    let folder = with_models();
    let report = folder.json(&["inspect", "gpt2", "--logits", "7,0,259", "--json"]);
    assert_eq!(report["num_params"], 11_008);
    let rows = report["logits"].as_array().expect("a row for each token");
    assert_eq!(rows.len(), 3);
    assert!(folder.succeed(&["inspect", "gpt2", "--logits", "7"]).stdout.contains("after token 1"));

    let there = folder.json(&["convert", "gpt2", "--to", "lockstep", "run", "--json"]);
    let back = &["convert", "run", "--to", "huggingface", "back", "--shard-size", "9kB", "--json"];
    let back = folder.json(back);
    assert_eq!(there["weights_hash"], back["weights_hash"]);
    assert!(back["files"].as_array().expect("files").len() > 1, "{back}");
    let converted = folder.json(&["inspect", "back", "--logits", "7,0,259", "--json"]);
    assert_eq!(converted["logits"], report["logits"], "the same bits");
    let half = &["convert", "run", "--to", "huggingface", "half", "--dtype", "bf16", "--json"];
    assert_eq!(folder.json(half)["num_bytes"], 2 * 11_008);
}

#[test]
fn a_configuration_alone_tells_the_shape_of_every_family() {
    let folder = Folder::new();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../harness/golden/huggingface");
    let world = lockstep_platform::real();
    let models = world.files().list(&golden).expect("golden folders are committed");
    assert!(models.len() >= 12, "all families");
    for model in models {
        let name = model.file_name().expect("a folder").display().to_string();
        let config = world.files().read(&model.join("config.json")).expect("a configuration");
        folder.write(&format!("{name}/config.json"), &config);
        let shape = folder.json(&["inspect", &name, "--json"]);
        let whole = folder.json(&["inspect", &model.display().to_string(), "--json"]);
        assert_eq!(shape["params"], whole["params"], "{name}");
        let plan = ["plan", "--model", &format!("{name}/config.json")];
        let plan = folder.json(&[&plan[..], &["--cluster", "8xh100-80gb", "--json"]].concat());
        assert_eq!(plan["num_params"], whole["num_params"], "{name}");
        // Numbers need weights.
        let no_weights = &["it holds no weights"];
        refused(&folder, &["inspect", &name, "--logits", "1"], no_weights);
        refused(&folder, &["generate", &name], no_weights);
    }
    // A folder of its own words: a field that differs is refused by its name.
    let llama = br#"{"model_type": "llama", "hidden_act": "relu", "hidden_size": 8,
        "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9, "intermediate_size": 8,
        "max_position_embeddings": 4}"#;
    folder.write("odd/config.json", llama);
    refused(&folder, &["inspect", "odd"], &["hidden_act"]);
}

#[test]
fn a_gguf_file_has_all_tensors_at_aligned_places() {
    let folder = with_models();
    for (dtype, code) in [("f32", 0), ("q8_0", 8)] {
        let file = format!("{dtype}.gguf");
        let export = ["convert", "gpt2", "--to", "gguf", &file, "--dtype", dtype, "--json"];
        let report = folder.json(&export);
        let bytes = folder.read(&file);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!((&bytes[..4], bytes[4]), (&b"GGUF"[..], 3), "magic number and version");
        assert_eq!(report["num_tensors"], number(8));
        // The description of a matrix: its name, two lengths, the columns first, type and place.
        let name = b"blk.0.attn_qkv.weight";
        let at = bytes.windows(name.len()).position(|window| window == name).expect("a tensor");
        let at = at + name.len();
        let [dims, kind] = [at, at + 20].map(|at| bytes[at]);
        let (columns, rows, place) = (number(at + 4), number(at + 12), number(at + 24));
        assert_eq!((dims, rows), (2, 3 * columns), "queries, keys and values");
        let is_whole = columns % 32 == 0;
        assert_eq!(kind, if is_whole || dtype == "f32" { code } else { 1 }, "{columns} columns");
        assert_eq!(place % 32, 0);
        refused(&folder, &["convert", "gpt2", "--to", "gguf", &file], &["exists already"]);
    }
    let other = ["convert", "gpt2", "--to", "huggingface", "--dtype", "q8_0"];
    refused(&folder, &other, &["--dtype q8_0 is not supported with --to huggingface"]);
}

#[test]
fn training_starts_from_a_foreign_model_and_from_a_run() {
    let folder = with_models();
    let train = |from: &str, dir: &str| {
        let dir = format!("run.dir={dir}");
        let sets = ["train.steps=1", "train.eval_batches=1", "run.workers=1", dir.as_str()];
        let mut arguments = vec!["train", from, "--json", "--quiet"];
        for set in sets {
            arguments.extend(["--set", set]);
        }
        folder.json(&arguments)
    };
    let first = train("llama-sharded", "first");
    let second = train("first", "second");
    assert_ne!(first["weights_hash"], second["weights_hash"]);
    let converted = folder.json(&["convert", "second", "--to", "huggingface", "out", "--json"]);
    assert_eq!(converted["weights_hash"], second["weights_hash"]);
}

#[test]
fn a_model_without_the_file_of_its_tokenizer_is_refused() {
    let folder = with_models();
    folder.write("gpt2/tokenizer.model", b"sentencepiece");
    let parts = ["gpt2 holds no tokenizer.json, only tokenizer.model", "save_pretrained(\"gpt2\")"];
    refused(&folder, &["train", "gpt2"], &parts);
    refused(&folder, &["generate", "gpt2"], &parts);
    let bytes = ["data.tokenizer=byte", "train.steps=1", "train.eval_batches=1", "run.dir=bytes"];
    let bytes = bytes.iter().flat_map(|set| ["--set", *set]);
    let train: Vec<_> = ["train", "gpt2", "--quiet"].into_iter().chain(bytes).collect();
    let report = folder.succeed(&train).stdout;
    assert!(report.starts_with("loss "), "a quiet run prints no sample: {report}");
    folder.succeed(&["generate", "bytes", "--tokens", "1"]);
}

#[test]
fn a_folder_that_does_not_exist_is_named_with_its_key() {
    let folder = Folder::new();
    let from = ["train", "--set", "model.from=nowhere"];
    refused(&folder, &from, &["model.from = nowhere does not exist", "Hugging Face model"]);
    let teacher = ["train", "--set", "finetune.method=distill", "--set", "finetune.teacher=none"];
    refused(&folder, &teacher, &["finetune.teacher = none does not exist"]);
}

#[test]
fn fine_tuning_reports_the_rule_of_its_learning_rate() {
    let folder = with_models();
    let sets = ["train.steps=1", "train.eval_batches=1", "run.workers=1"];
    let train = |from: &str, more: &[&str]| {
        let mut arguments = vec!["train", from];
        for set in sets.iter().chain(more) {
            arguments.extend(["--set", *set]);
        }
        folder.succeed(&arguments).stderr
    };
    let line = "fine-tuning llama-sharded: learning rate 3.5e-4 = 5e-5 x sqrt(768 / model.width); \
                set optim.lr to choose another";
    let found = train("llama-sharded", &["run.dir=rule"]);
    assert_eq!(found.matches(line).count(), 1, "{found}");
    let recipe = folder.json(&["config", "rule/recipe.toml", "--json"]);
    let text = recipe["recipe_toml"].as_str().expect("text");
    assert!(text.contains("\nlr = 0.00035\n"), "{text}");
    let chosen = train("llama-sharded", &["run.dir=chosen", "optim.lr=1e-3"]);
    assert!(!chosen.contains("fine-tuning"), "{chosen}");
}

#[test]
fn an_export_declares_the_positions_of_the_original_by_default() {
    let folder = with_models();
    let sets = ["train.steps=1", "train.eval_batches=1", "run.workers=1", "model.context=8"];
    let train = |from: &str, dir: &str| {
        let dir = format!("run.dir={dir}");
        let mut arguments = vec!["train", from, "--quiet"];
        for set in sets.iter().chain(&[dir.as_str()]) {
            arguments.extend(["--set", *set]);
        }
        folder.succeed(&arguments);
    };
    let positions = |name: &str, key: &str| {
        let text = folder.read(&format!("{name}/config.json"));
        let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        config[key].as_u64().expect("a number")
    };
    train("llama-sharded", "llama");
    folder.succeed(&["convert", "llama", "--to", "huggingface", "same"]);
    assert_eq!(positions("same", "max_position_embeddings"), 16);
    let longer = ["--to", "huggingface", "longer", "--max-positions", "64"];
    folder.succeed(&[&["convert", "llama"], &longer[..]].concat());
    assert_eq!(positions("longer", "max_position_embeddings"), 64);

    train("gpt2", "learned");
    let exported = folder.succeed(&["convert", "learned", "--to", "huggingface", "first"]);
    assert_eq!(positions("first", "n_positions"), 8);
    assert!(exported.stderr.contains("warning: n_positions is 8, and 16 in gpt2"), "{exported:?}");
    let more = ["convert", "learned", "--to", "huggingface", "more", "--max-positions", "16"];
    refused(&folder, &more, &["--max-positions 16 is above the 8 learned", "--max-positions 8"]);
    let run = ["convert", "gpt2", "--to", "lockstep", "run", "--max-positions", "8"];
    refused(&folder, &run, &["--max-positions", "--to lockstep", "drop it"]);
}

#[test]
fn unusable_foreign_folders_are_refused_in_one_line() {
    let folder = with_models();
    let good = folder.read("gpt2/model.safetensors");
    let config = String::from_utf8(folder.read("gpt2/config.json")).expect("text");
    let train = ["train", "gpt2", "--set", "train.steps=1"];
    let commands: [&[&str]; 4] = [
        &train,
        &["generate", "gpt2", "--tokens", "1"],
        &["inspect", "gpt2", "--logits", "1"],
        &["convert", "gpt2", "--to", "lockstep", "out"],
    ];
    let all_refuse = |parts: &[&str]| {
        for command in commands {
            refused(&folder, command, parts);
        }
    };
    folder.write("gpt2/model.safetensors", &good[..good.len() - 9]);
    all_refuse(&["gpt2/model.safetensors is not a whole safetensors file"]);
    folder.write("gpt2/model.safetensors", &good);
    for (from, to, expected) in [
        ("\"n_layer\": 2", "\"n_layer\": 3", "gpt2 has no tensor transformer.h.2."),
        ("\"n_layer\": 2", "\"n_layer\": 1", "that the model lacks"),
        ("\"vocab_size\": 260", "\"vocab_size\": 261", "has shape [260, 16], the model needs [261"),
        ("\"gelu_new\"", "\"relu\"", "activation_function = \"relu\" is not supported"),
        ("\"model_type\": \"gpt2\"", "\"model_type\": \"bert\"", "model_type = \"bert\""),
        ("\"n_head\": 4", "\"n_head\": 5", "gpt2/config.json: model.width = 16 is not a multiple"),
    ] {
        assert!(config.contains(from), "{from}");
        folder.write("gpt2/config.json", config.replace(from, to).as_bytes());
        all_refuse(&[expected]);
    }
    folder.write("gpt2/config.json", config.as_bytes());
    let tokenizer = br#"{"model": {"type": "BPE", "vocab": {"a": 260}}, "added_tokens": []}"#;
    folder.write("gpt2/tokenizer.json", tokenizer);
    all_refuse(&["gpt2/tokenizer.json", "261 different tokens", "vocab_size = 260"]);
}

#[test]
fn invalid_conversions_are_refused() {
    let folder = with_models();
    folder.write("precious/notes.txt", b"do not lose me");
    let to = |source: &'static str, format: &'static str, out: &'static str| {
        vec!["convert", source, "--to", format, out]
    };
    for format in ["lockstep", "huggingface"] {
        refused(&folder, &to("gpt2", format, "precious"), &["precious exists already"]);
        refused(&folder, &to("precious", format, "out"), &["precious holds no finished run"]);
        refused(&folder, &to("nowhere", format, "out"), &["nowhere does not exist"]);
    }
    let narrow = [to("gpt2", "lockstep", "out"), vec!["--dtype", "f16"]].concat();
    refused(&folder, &narrow, &["--dtype f16", "drop it"]);
    refused(&folder, &["inspect", "--logits", "1"], &["--logits needs weights"]);
    refused(&folder, &["inspect", "gpt2", "--logits", "260"], &["--logits 260", "0 to 259"]);
    let long = vec!["1"; 17].join(",");
    refused(&folder, &["inspect", "gpt2", "--logits", &long], &["17 tokens", "context = 16"]);
    let other = ["train", "gpt2", "--set", "model.layers=7"];
    refused(&folder, &other, &["model.layers = 7 contradicts gpt2/config.json, which has 2"]);
}
