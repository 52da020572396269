//! `lockstep bench methods`: a table of distributed training methods.

use crate::process::{Folder, assert_keys};

const ROWS: &str = "\
# The first row is the reference.
all-reduce
top-k     compress.method=top-k compress.ratio=0.05

local-4   sync.mode=local-sgd sync.local_steps=4
";

const TABLE: &[&str] = &[
    "bench",
    "methods",
    "--preset=tiny",
    "--rows=rows.txt",
    "--set=train.steps=12",
    "--set=train.eval_every=2",
    "--set=emulate.microbatch_ms=1",
];

#[test]
fn a_table_compares_methods_with_the_first_and_is_made_once() {
    let folder = Folder::new();
    folder.write("rows.txt", ROWS.as_bytes());
    let json = [TABLE, &["--json"]].concat();
    let found = folder.json(&json);
    assert_eq!(found["reference"], "all-reduce");
    let rows = found["rows"].as_array().expect("a list");
    let keys = "method set steps seconds wire_bytes validation_loss command";
    for row in rows {
        assert_keys(row, keys);
        assert!(row["seconds"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["steps"], 12, "{row}");
    }
    let bytes: Vec<u64> = rows.iter().filter_map(|row| row["wire_bytes"].as_u64()).collect();
    assert!(bytes.len() == 3 && bytes[1] < bytes[0] && bytes[2] < bytes[0], "{bytes:?}");
    assert!(bytes[2] * 3 < bytes[0], "one exchange in four steps: {bytes:?}");
    assert!(rows[0]["steps_to_reference"].as_u64() <= Some(12), "it reaches its own loss");
    assert_eq!(rows[0]["excess_loss"], 0.0);
    assert!(rows[1]["command"].as_str().is_some_and(|c| c.contains("compress.ratio=0.05")));

    assert_eq!(folder.json(&json), found, "no run was repeated");
    let text = folder.succeed(&[TABLE, &["--quiet"]].concat()).stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("local-4 ")).count(), 1, "{text}");
    assert!(text.contains("a micro-batch takes 1 ms"), "{text}");
}

#[test]
fn invalid_rows_are_refused() {
    let folder = Folder::new();
    folder.write("rows.txt", b"one\none\ntwo train.steps\n../three\n");
    let wrong = folder.run(TABLE);
    assert_eq!(wrong.code, Some(2));
    for line in [
        "line 2 of the rows: one is repeated",
        "line 3 of the rows: train.steps is not KEY=VALUE",
        "line 4 of the rows: ../three is not a folder name",
    ] {
        assert!(wrong.stderr.contains(line), "{}", wrong.stderr);
    }
    let unknown = folder.run(&["bench", "methods", "--only", "all-reduce,nothing"]);
    assert_eq!(unknown.code, Some(2));
    assert!(
        unknown.stderr.contains("--only nothing is not a row; try all-reduce, "),
        "{unknown:?}"
    );
    let all = folder.succeed(&["bench", "methods", "--dry-run"]).stdout;
    assert!(all.contains("lockstep train --preset methods --set compress.method=sign"), "{all}");
    assert!(!folder.path().join("methods").exists(), "nothing ran");
}
