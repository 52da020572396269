//! Using a model: tasks of multiple choice, conversations, and several prompts together.

use crate::process::{Finished, Folder, assert_keys, last_error};
use std::path::Path;
use std::process::Stdio;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant: {% endif %}";

fn golden(name: &str) -> String {
    let tasks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../harness/golden/tasks");
    tasks.join(name).display().to_string()
}

fn chat(folder: &Folder, input: &str, more: &[&str]) -> Finished {
    folder.write("input.txt", input.as_bytes());
    folder.write("chat.jinja", TEMPLATE.as_bytes());
    let model = golden("model");
    let arguments = ["chat", &model, "--temperature", "0", "--tokens", "4"];
    let arguments = [&arguments[..], more].concat();
    let input = folder.shell("exec cat input.txt").stdout(Stdio::piped()).spawn();
    let mut input = input.expect("the shell starts");
    let output = input.stdout.take().expect("it is piped");
    let finished = folder.command(&arguments).stdin(Stdio::from(output)).output();
    input.wait().expect("it has started");
    Finished::new(finished.expect("the binary starts"))
}

#[test]
fn tasks_are_answered_with_scores() {
    let folder = Folder::new();
    let (model, arc, mmlu) = (golden("model"), golden("arc.yaml"), golden("mmlu.yaml"));
    let options = ["--num-fewshot", "1", "--limit", "3"];
    let command = [&["eval", &model, "--task", &arc, &mmlu, "--json", "--samples"], &options[..]];
    let report = folder.json(&command.concat());
    assert_keys(&report, "model seconds tasks");
    let tasks = report["tasks"].as_array().expect("a list");
    let keys = "task num_questions num_fewshot acc acc_stderr log_likelihood log_likelihoods";
    for task in tasks {
        assert_keys(task, keys);
    }
    let found = (&tasks[0]["task"], &tasks[0]["num_questions"], &tasks[0]["num_fewshot"]);
    assert_eq!(found, (&"arc".into(), &3.into(), &1.into()));
    let text = folder.succeed(&["eval", &model, "--task", &mmlu]).stdout;
    assert!(text.contains("mmlu: 6 questions, 2 examples each") && text.contains(" ± "), "{text}");
    folder.write("bad.yaml", b"task: bad\noutput_type: generate_until\n");
    let refused = folder.run(&["eval", &model, "--task", "bad.yaml"]);
    assert_eq!(refused.code, Some(2));
    assert!(last_error(&refused.stderr).contains("bad.yaml: output_type = generate_until"));
    // A run is refused before it begins.
    let train = ["train", "--preset", "tiny", "--set", "eval.tasks=[\"bad.yaml\"]"];
    let refused = folder.run(&train);
    assert_eq!(refused.code, Some(2));
    assert!(last_error(&refused.stderr).contains("bad.yaml: output_type"), "{}", refused.stderr);
}

#[test]
fn a_conversation_reads_lines_and_commands() {
    let folder = Folder::new();
    let input = "river\n/unknown\nstone\n/system Be kind.\nglass\n/exit\nnot read\n";
    let flags = ["--template", "chat.jinja"];
    let found = chat(&folder, input, &[&flags[..], &["--json"]].concat());
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let report: serde_json::Value = serde_json::from_str(&found.stdout).expect("one JSON value");
    let turns = report["turns"].as_array().expect("a list");
    let users: Vec<_> = turns.iter().map(|turn| turn["user"].as_str().expect("text")).collect();
    assert_eq!(users, ["river", "stone", "glass"]);
    assert!(turns[1]["num_cached_tokens"].as_u64() > Some(5), "{turns:?}");
    let text = chat(&folder, input, &flags).stdout;
    let answers =
        turns.iter().map(|turn| format!("{}\n", turn["assistant"].as_str().expect("text")));
    assert_eq!(text, answers.collect::<String>());
    // The folder has no template of its own.
    let refused = chat(&folder, input, &[]);
    assert_eq!(refused.code, Some(2));
    assert!(last_error(&refused.stderr).contains("has no chat template"), "{}", refused.stderr);
    assert!(last_error(&refused.stderr).contains("--template chatml"), "{}", refused.stderr);
    // A turn that does not fit ends the command, with the turns before it.
    let long = format!("river\n{}\nstone\n", "water ".repeat(200));
    let long = chat(&folder, &long, &[&flags[..], &["--json"]].concat());
    assert_eq!(long.code, Some(2));
    let report: serde_json::Value = serde_json::from_str(&long.stdout).expect("one JSON value");
    assert_eq!(report["turns"][0]["user"], "river");
    assert_eq!(report["turns"].as_array().map(Vec::len), Some(1));
    let long = chat(&folder, &"water ".repeat(200), &flags);
    assert_eq!(long.code, Some(2));
    assert!(last_error(&long.stderr).contains("the model's context is 96"), "{}", long.stderr);
}

#[test]
fn several_prompts_have_the_texts_of_each() {
    let folder = Folder::new();
    let model = golden("model");
    let common =
        ["generate", &model, "--tokens", "6", "--temperature", "0", "--json", "--ignore-eos"];
    let of = |prompts: &[&'static str]| {
        let prompts = prompts.iter().flat_map(|prompt| ["--prompt", prompt]);
        folder.json(&common.iter().copied().chain(prompts).collect::<Vec<_>>())
    };
    let together = of(&["river", "stone light"]);
    assert_keys(&together, "texts num_tokens seconds tokens_per_second run_dir");
    for (index, prompt) in ["river", "stone light"].into_iter().enumerate() {
        assert_eq!(together["texts"][index]["text"], of(&[prompt])["text"], "{prompt}");
    }
    // A text that the model writes ends the next one there.
    let whole = of(&["river"]);
    assert_eq!((&whole["stop"], &whole["num_tokens"]), (&"limit".into(), &6.into()));
    let text = whole["text"].as_str().expect("text");
    let middle = text.char_indices().map(|(at, _)| at).nth(2).expect("three characters");
    let stop = format!("--stop={}", &text[middle..]);
    let stopped = folder.json(&[&common[..], &["--prompt", "river", &stop]].concat());
    let before = text.split(&text[middle..]).next();
    assert_eq!((&stopped["stop"], stopped["text"].as_str()), (&"stop".into(), before));
    let refused = folder.run(&["generate", &model, "--stop", ""]);
    assert_eq!(refused.code, Some(2));
    assert!(last_error(&refused.stderr).contains("--stop needs a text"), "{}", refused.stderr);
}
