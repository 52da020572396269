//! Folders of PEFT adapters as models: `generate`, `chat` and `eval`.

use crate::bad_input::refused;
use crate::process::Folder;
use std::io::Write as _;
use std::process::Stdio;

/// A run of the smallest model, and one that has trained adapters beside it.
fn tuned() -> Folder {
    let folder = Folder::new();
    let train = |arguments: &[&str], dir: &str| {
        let fixed = ["train", "--steps", "2", "--quiet", "--json", "--set", dir];
        folder.json(&[&fixed[..], arguments].concat());
    };
    train(&["--preset", "tiny", "--set", "model.context=96"], "run.dir=base");
    let adapters = ["finetune.lora_rank=2", "finetune.lora_targets=all-linear", "optim.lr=0.1"];
    let sets: Vec<_> = adapters.iter().flat_map(|set| ["--set", set]).collect();
    train(&[&["base"][..], &sets].concat(), "run.dir=tuned");
    folder
}

#[test]
fn an_adapter_folder_is_the_model_that_was_tuned() {
    let folder = tuned();
    folder.write("a.txt", b"In the beginning God created the heaven and the earth.");
    let generate = ["--prompt", "In the", "--tokens", "20", "--temperature", "0", "--json"];
    let text = |model: &[&str]| {
        let generated = folder.json(&[&["generate"], model, &generate].concat());
        generated["text"].as_str().expect("a text").to_owned()
    };
    let loss = |model: &[&str]| {
        let found = folder.json(&[&["eval"], model, &["--data", "a.txt", "--json"]].concat());
        found["nats"].as_f64().expect("a loss").to_bits()
    };
    let answer = |model: &[&str]| {
        let fixed = ["--template", "chatml", "--tokens", "5", "--temperature", "0"];
        let mut chat = folder.command(&[&["chat"], model, &fixed].concat());
        let chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut chat = chat.expect("the binary starts");
        chat.stdin.take().expect("a pipe").write_all(b"Hi\n").expect("it reads");
        chat.wait_with_output().expect("it ends").stdout
    };
    let (alone, based): (&[&str], &[&str]) =
        (&["tuned/adapter"], &["tuned/adapter", "--base", "base"]);
    for model in [alone, based] {
        assert_eq!(text(model), text(&["tuned"]));
        assert_eq!(loss(model), loss(&["tuned"]));
        assert_eq!(answer(model), answer(&["tuned"]));
    }
    assert_ne!(loss(alone), loss(&["base"]), "adapters change the model");
}

#[test]
fn an_adapter_folder_without_its_model_is_refused() {
    let folder = tuned();
    let generate = |model: &[&'static str]| [&["generate"], model].concat();
    let config = String::from_utf8(folder.read("tuned/adapter/adapter_config.json")).unwrap();
    let weights = folder.read("tuned/adapter/adapter_model.safetensors");
    let copy = |name: &str, config: &str| {
        folder.write(&format!("{name}/adapter_config.json"), config.as_bytes());
        folder.write(&format!("{name}/adapter_model.safetensors"), &weights);
    };
    copy("hub", &config.replace("\"base\"", "\"meta-llama/Llama-3.2-1B\""));
    copy("none", &config.replace("\"base\"", "null"));
    copy("dora", &config.replace("\"use_dora\": false", "\"use_dora\": true"));
    let hub = ["hub has adapters", "= \"meta-llama/Llama-3.2-1B\" is no folder here", "--base DIR"];
    refused(&folder, &generate(&["hub"]), &hub);
    refused(&folder, &["eval", "none", "--data", "a"], &["names none", "--base DIR"]);
    refused(&folder, &generate(&["dora"]), &["use_dora = true is not supported"]);
    refused(&folder, &generate(&["hub", "--base", "gone"]), &["gone does not exist"]);
    let adapted = ["tuned, the base model of the adapters in hub, has adapters itself"];
    refused(&folder, &generate(&["hub", "--base", "tuned"]), &adapted);
    refused(&folder, &generate(&["base", "--base", "base"]), &["base is a model; drop it"]);
    refused(&folder, &["train", "hub"], &["model.from = hub has adapters without their model"]);
    let other = ["train", "--preset", "tiny", "--steps", "1", "--quiet", "--set", "model.width=16"];
    folder.succeed(&[&other[..], &["--set", "run.dir=other"]].concat());
    refused(&folder, &generate(&["hub", "--base", "other"]), &["lora_B.weight has shape"]);
}
