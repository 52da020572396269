//! `lockstep runs`: states, figures and order of the list.

use crate::launch::{Running, send};
use crate::process::{Folder, assert_keys};
use serde_json::Value;

fn train(folder: &Folder, sets: &[&str], more: &[&str]) -> Option<i32> {
    let mut arguments = vec!["train", "--preset", "tiny", "--quiet"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    arguments.extend(more);
    folder.run(&arguments).code
}

fn states(list: &Value) -> Vec<&str> {
    let runs = list.as_array().expect("a list");
    runs.iter().map(|run| run["state"].as_str().expect("a state")).collect()
}

#[test]
fn every_state_of_a_run_is_listed_newest_last() {
    let folder = Folder::new();
    assert_eq!(folder.json(&["runs", "--json"]), Value::Array(Vec::new()), "no folder, no runs");
    let none = folder.succeed(&["runs"]);
    assert!(none.stderr.contains("no runs in runs; lockstep train starts one"), "{none:?}");
    let missing = folder.run(&["runs", "nowhere"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");

    assert_eq!(train(&folder, &["train.steps=3"], &[]), Some(0));
    assert_eq!(train(&folder, &["train.steps=9"], &["--stop-after", "2"]), Some(0));
    assert_eq!(train(&folder, &["optim.lr=1000", "optim.clip=0"], &[]), Some(5));
    folder.write("runs/notes/readme.txt", b"not a run");
    folder.write("runs/file", b"not a run");
    let before = folder.content();
    let running = Running::start(&folder, &[]);
    let list = folder.json(&["runs", "--json"]);
    assert_eq!(states(&list), ["finished", "stopped", "diverged", "running"]);

    send("-KILL", running.worker(1));
    running.end();
    let after = folder.json(&["runs", "--json"]);
    assert_eq!(states(&after), ["finished", "stopped", "diverged", "failed"]);
    let reason = after[3]["reason"].as_str().expect("a reason");
    assert!(reason.contains("rank 1"), "{reason}");

    let first = &list[0];
    assert_keys(first, "folder state reason steps num_steps loss validation_loss layout workers");
    assert_keys(first, "age_seconds idle_seconds");
    assert_eq!((&first["steps"], &first["num_steps"]), (&3.into(), &3.into()));
    assert_eq!((&list[1]["steps"], &list[1]["num_steps"]), (&2.into(), &9.into()));
    assert!(first["loss"].is_f64() && first["validation_loss"].is_f64(), "{first}");
    assert_eq!(first["layout"], "TP1 PP1 DP2 mbs 1");
    assert!(list[2]["reason"].as_str().expect("a reason").contains("became"), "{}", list[2]);

    let text = folder.succeed(&["runs"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("state ") && lines[0].ends_with("folder"), "{text}");
    assert!(lines[1].starts_with("finished ") && lines[1].ends_with("runs/0001"), "{text}");
    // A run that is over ended some time ago; when it started is in the JSON only.
    assert!(lines[1].contains(" ended ") && lines[1].contains(" ago "), "{text}");
    assert!(!text.contains(" started "), "no run is alive: {text}");
    let legend = lines.last().expect("a last line");
    assert!(legend.starts_with("layout: TP tensor, PP pipeline"), "{text}");
    let one = folder.json(&["runs", "runs/0002", "--json"]);
    assert_eq!(states(&one), ["stopped"], "a run folder lists itself");
    // It reads only: everything that was there is as it was.
    let content = folder.content();
    for (path, bytes) in &before {
        assert_eq!(content.get(path), Some(bytes), "{}", path.display());
    }
}
