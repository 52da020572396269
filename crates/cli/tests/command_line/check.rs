//! `lockstep check` on this host: its table, its JSON, and what it finds.

use crate::process::{Finished, Folder};
use serde_json::Value;
use std::process::Command;

#[test]
fn the_ranks_of_this_host_are_in_one_table_and_nothing_stays_behind() {
    let folder = Folder::new();
    let checked = folder.run(&["check", "--preset", "tiny", "--workers", "2", "--device", "cpu"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let lines: Vec<&str> = checked.stdout.lines().collect();
    assert!(lines[0].starts_with("rank  host"), "{checked:?}");
    for rank in 0..2 {
        assert!(lines[1 + rank].starts_with(&format!("{rank}  ")), "{checked:?}");
    }
    assert!(checked.stdout.contains("the ranks share memory"), "{checked:?}");
    let is_left = folder.content().keys().any(|path| path.to_string_lossy().contains("check-"));
    assert!(!is_left, "{:?}", folder.content().keys());
}

#[test]
fn a_low_limit_of_open_files_is_an_error_with_a_remedy() {
    let folder = Folder::new();
    let script = "ulimit -n 200; exec \"$0\" check --preset tiny --workers 2 --device cpu --json";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockstep")]).current_dir(folder.path());
    let checked = Finished::new(command.output().expect("a shell"));
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let report: Value = serde_json::from_str(&checked.stdout).expect("one JSON value");
    assert_eq!(report["hosts"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["hosts"][0]["open_files"], 200);
    let texts = report["findings"].as_array().expect("a list").iter().map(|it| it["text"].as_str());
    let texts: Vec<&str> = texts.flatten().collect();
    assert!(texts.contains(&"200 files may be open, 272 are needed"), "{texts:?}");
    assert!(checked.stderr.contains("a run would fail"), "{checked:?}");
}
