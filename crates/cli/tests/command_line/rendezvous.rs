//! `lockstep rendezvous`: secrets, and workers of other launchers.

use crate::process::{Finished, Folder};
use lockstep_platform::real;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

const TINY: [&str; 8] =
    ["train", "--preset", "tiny", "--json", "--quiet", "--set", "train.steps=2", "--set"];

/// A worker of another launcher, without a secret.
fn worker(folder: &Folder, rank: usize, set: &str) -> Command {
    let mut command = folder.command(&[&TINY[..], &[set]].concat());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
    command.env_remove("LOCKSTEP_SECRET").env_remove("LOCKSTEP_SECRET_FILE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(child: Child) -> Finished {
    Finished::new(child.wait_with_output().expect("it ends"))
}

fn new_secret(folder: &Folder) -> String {
    folder.succeed(&["rendezvous", "--new-secret"]).stdout.trim().to_owned()
}

#[test]
fn a_new_secret_is_64_digits_and_another_one_every_time() {
    let folder = Folder::new();
    let secret = new_secret(&folder);
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let other = folder.json(&["rendezvous", "--new-secret", "--json"]);
    assert_ne!(other["secret"], secret);
}

#[test]
fn workers_join_through_a_rendezvous_and_strangers_are_refused() {
    let folder = Folder::new();
    let secret = new_secret(&folder);
    folder.write("secret", secret.as_bytes());
    let file = folder.path().join("secret");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let arguments = ["rendezvous", "--listen", "127.0.0.1:0", "--workers", "2", "--json"];
    let mut command = folder.command(&arguments);
    command.env("LOCKSTEP_SECRET_FILE", &file).env_remove("LOCKSTEP_SECRET");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut host = command.spawn().expect("the binary starts");
    let mut stderr = BufReader::new(host.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("text");
    let addr = line.trim().strip_prefix("waiting for 2 workers at ").expect("its address");

    let start = |rank: usize, secret: &str| {
        let mut command = worker(&folder, rank, "run.encrypt=true");
        command.env("LOCKSTEP_SECRET", secret).env("LOCKSTEP_RENDEZVOUS", addr);
        command.spawn().expect("the binary starts")
    };
    let stranger = finish(start(1, &"07".repeat(32)));
    assert_eq!(stranger.code, Some(2), "{}", stranger.stderr);
    let expected = "error: rank 1: the rendezvous host refused: it has another secret; \
                    LOCKSTEP_SECRET must be the same for all workers of a run\n";
    assert_eq!(stranger.stderr, expected);
    let workers = [start(0, &secret), start(1, &secret)].map(finish);
    for worker in &workers {
        assert_eq!(worker.code, Some(0), "{}", worker.stderr);
    }
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("text");
    assert!(rest.contains(": it does not know the run's secret\n"), "{rest}");
    assert!(rest.contains("rank 1 joined from 127.0.0.1:"), "{rest}");
    let report: serde_json::Value =
        serde_json::from_str(&finish(host).stdout).expect("one JSON value");
    assert_eq!((&report["num_refused"], &report["workers"][1]["rank"]), (&1.into(), &1.into()));

    // Encryption does not change the result.
    let alone = folder.json(&[&TINY[..], &["run.workers=1"]].concat());
    let found: serde_json::Value = serde_json::from_str(&workers[0].stdout).expect("figures");
    assert_eq!(found["weights_hash"], alone["weights_hash"]);
}

#[test]
fn workers_without_a_valid_secret_are_refused_with_a_fix() {
    let folder = Folder::new();
    folder.write("secret", new_secret(&folder).as_bytes());
    let file = folder.path().join("secret");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let file = file.display().to_string();
    let how = "`lockstep rendezvous --new-secret`";
    let cases = [
        (vec![], how.to_owned()),
        (vec![("LOCKSTEP_SECRET", "swordfish")], how.to_owned()),
        (vec![("LOCKSTEP_SECRET_FILE", file.as_str())], format!("try chmod 600 {file}")),
    ];
    let port = real().net().listen("127.0.0.1:0").expect("a port").local_addr();
    let port = port.rsplit_once(':').expect("a port").1.to_owned();
    for (variables, expected) in cases {
        let mut command = worker(&folder, 0, "run.workers=2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        // The other rank is on another host: ranks of one host share a secret of their user.
        command.env("LOCAL_WORLD_SIZE", "1");
        for (name, value) in variables {
            command.env(name, value);
        }
        let refused = finish(command.spawn().expect("the binary starts"));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
        assert!(!refused.stderr.contains("swordfish"), "{}", refused.stderr);
    }
}
