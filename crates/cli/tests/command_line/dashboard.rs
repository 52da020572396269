//! `lockstep serve`, `train --serve` and `report`: a run in a browser and as one page.

use crate::process::Folder;
use lockstep_platform::World;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const TRAIN: [&str; 8] =
    ["train", "--preset", "tiny", "--steps", "70", "--quiet", "--set", "run.workers=2"];

/// Ends with its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answer to a request for a target, with the token as the cookie that the page would set.
fn get(world: &World, url: &str, target: &str) -> String {
    let addr = url.trim_start_matches("http://").split('/').next().expect("a host");
    let token = url.split("token=").nth(1).expect("a token");
    let port = addr.split(':').nth(1).expect("a port");
    let mut stream = world.net().connect(addr, Duration::from_secs(10)).expect("it listens");
    stream.set_deadline(Some(Duration::from_secs(20)));
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {addr}\r\nCookie: lockstep-{port}={token}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

fn get_until(world: &World, url: &str, target: &str, part: &str) -> String {
    loop {
        let answer = get(world, url, target);
        if answer.contains(part) {
            return answer;
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        world.clock().sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_is_served_and_written_as_a_page() {
    let folder = Folder::new();
    let world = lockstep_platform::real();
    folder.succeed(&TRAIN);
    let mut serve = folder.command(&["serve"]);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let stdout = child.stdout.take().expect("it is a pipe");
    let server = Server(child);
    let mut url = String::new();
    BufReader::new(stdout).read_line(&mut url).expect("the address");
    let url = url.trim();
    let runs = get_until(&world, url, "/api/runs", "\"step\":70,");
    assert!(runs.contains("\"name\":\"0001\"") && runs.contains("finished"), "{runs}");
    let planned = get(&world, url, "/api/runs/0/planned");
    assert!(
        planned.contains("\"rank 1 compute\"") && planned.contains("\"matrix\":[[0,"),
        "{planned}"
    );
    let explained = get(&world, url, "/api/runs/0/explain");
    assert!(
        explained.contains("\"verdict\":") && explained.contains("\"what_if\":"),
        "{explained}"
    );
    let details = get(&world, url, "/api/runs/0/details");
    assert!(details.contains("\"planned_memory\":[{\"rank\":0,"), "{details}");
    assert!(
        details.contains("\"rank_spans\":[[64,1,[["),
        "rank 1 sends its sampled step: {details}"
    );
    drop(server);

    folder.succeed(&["report", "--html", "run.html"]);
    let page = String::from_utf8(folder.read("run.html")).expect("text");
    assert!(!page.contains("<script"), "no script");
    let measured = ["rank 0, measured", "rank 1, measured"];
    let parts = ["Loss", "The step in time", "Bytes between ranks", "Planned memory", "verdict"];
    for part in parts.into_iter().chain(measured) {
        assert!(page.contains(part), "{part} is not in the page");
    }
    for target in [" src=", "href=", "url(http"] {
        assert!(!page.contains(target), "{target} in the page");
    }
    // Without Chromium there is no PDF, and the error says what to do.
    let mut pdf = folder.command(&["report", "--pdf", "run.pdf"]);
    let refused = pdf.env("PATH", folder.path()).output().expect("it starts");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.starts_with("error: --pdf needs Chromium"), "{error}");
    let missing = folder.run(&["serve", "nowhere"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.contains("nowhere is no run and has none"), "{missing:?}");
}

#[test]
fn a_dashboard_beside_training_changes_no_bit_and_a_busy_port_is_a_warning() {
    let folder = Folder::new();
    let world = lockstep_platform::real();
    let taken = world.net().listen("127.0.0.1:0").expect("a port");
    let plain = folder.json(&[&TRAIN[..], &["--json"]].concat());
    let served = folder.succeed(&[&TRAIN[..], &["--json", "--serve"]].concat());
    assert!(served.stderr.contains("dashboard: http://127.0.0.1:"), "{}", served.stderr);
    let addr = format!("--serve={}", taken.local_addr());
    let busy = folder.succeed(&[&TRAIN[..], &["--json", &addr]].concat());
    let warning = "address already in use; the run continues without its dashboard";
    assert!(busy.stderr.contains(warning), "{}", busy.stderr);
    for run in [served, busy] {
        let summary: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
        for hash in ["losses_hash", "weights_hash"] {
            assert_eq!(summary[hash], plain[hash], "{hash}");
        }
    }
}
