//! `lockstep serve`, `train --serve` and `report`: a run in a browser and as one page.

use crate::process::Folder;
use lockstep_platform::{Stream, World};
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

impl Server {
    /// Starts `serve` and reads the address that it prints.
    fn start(folder: &Folder, arguments: &[&str]) -> (Self, String) {
        let mut serve = folder.command(&[&["serve"], arguments].concat());
        let child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("it starts");
        let stdout = child.stdout.take().expect("it is a pipe");
        let server = Self(child);
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url).expect("the address");
        (server, url.trim().to_owned())
    }
}

/// Deadline of a client.
const DEADLINE: Duration = Duration::from_secs(20);

/// Host and port of an address.
fn host_of(url: &str) -> &str {
    url.trim_start_matches("http://").split('/').next().expect("a host")
}

fn connect(world: &World, url: &str) -> Option<Box<dyn Stream>> {
    let mut stream = world.net().connect(host_of(url), DEADLINE).ok()?;
    stream.set_deadline(Some(DEADLINE));
    Some(stream)
}

/// Answer to a request with these header lines; `None` if the server has ended.
fn ask(world: &World, url: &str, target: &str, lines: &str) -> Option<String> {
    let start = world.clock().now();
    let mut stream = connect(world, url)?;
    let host = host_of(url);
    let own_host = if lines.contains("Host: ") { "" } else { &format!("Host: {host}\r\n") };
    let request = format!("GET {target} HTTP/1.1\r\n{own_host}{lines}Connection: close\r\n\r\n");
    let mut answer = String::new();
    let sent = stream.write_all(request.as_bytes());
    let answered = sent.and_then(|()| stream.read_to_string(&mut answer));
    assert!(world.clock().since(start) < DEADLINE, "no answer: {lines}");
    answered.ok().filter(|len| *len > 0).map(|_| answer)
}

/// The token as the cookie that the page would set.
fn cookie(url: &str) -> String {
    let token = url.split("token=").nth(1).expect("a token");
    let port = host_of(url).split(':').nth(1).expect("a port");
    format!("Cookie: lockstep-{port}={token}\r\n")
}

/// Answer to a request for a target, as a browser sends it.
fn get(world: &World, url: &str, target: &str) -> String {
    ask(world, url, target, &cookie(url)).expect("it answers")
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
    let (server, url) = Server::start(&folder, &["--port", "0", "--token", "for-scripts-only"]);
    assert!(url.ends_with("/?token=for-scripts-only"), "{url}");
    let url = url.as_str();
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
    assert!(details.contains("\"sampled_steps\":[64]"), "{details}");
    let spans = get(&world, url, "/api/runs/0/spans?step=64");
    assert!(spans.contains("[[0,[[") && spans.contains("],[1,[["), "both ranks: {spans}");
    let stragglers = get(&world, url, "/api/runs/0/stragglers");
    assert!(stragglers.contains("\"ranks\":[0,1]"), "{stragglers}");
    assert!(details.contains("\"memory\":{\"weights\":"), "ranks say what they hold: {details}");
    // A script sends the token with each request, and names the run.
    let steps = ask(&world, url, "/api/runs/0001/steps?token=for-scripts-only", "");
    let steps = steps.expect("it answers");
    assert!(steps.contains("{\"step\":70,\"loss\":"), "{steps}");
    drop(server);
    let refused = folder.run(&["serve", "--token", "two words"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.starts_with("error: --token is not 1 to 128 letters"), "{refused:?}");

    folder.succeed(&["report", "--html", "run.html"]);
    let page = String::from_utf8(folder.read("run.html")).expect("text");
    assert!(!page.contains("<script"), "no script");
    let measured = ["rank 0, measured", "rank 1, measured", "rank 1 measured"];
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

/// A round of attacks by strangers, pages of other sites and slow clients, with a browser between
/// them. The idle connections stay open; false if the server has ended.
fn attack(world: &World, url: &str, idle: &mut Vec<Box<dyn Stream>>) -> bool {
    for _ in 0..200 {
        let Some(mut slow) = connect(world, url) else { return false };
        // A head that is never whole.
        let _ = slow.write_all(b"GET / HTTP/1.1\r\nX-Slow: ");
        idle.push(slow);
        idle.extend((0..4).filter_map(|_| connect(world, url)));
    }
    let cookie = cookie(url);
    let hostile = [
        ("", 401),
        ("Cookie: lockstep-1=0\r\n", 401),
        (&*format!("Host: rebind.example\r\n{cookie}"), 421),
        (&*format!("Sec-Fetch-Site: cross-site\r\n{cookie}"), 403),
        (&*format!("Content-Length: 1000000\r\n{cookie}"), 413),
    ];
    let browser = ["/", "/api/runs/0/details", "/api/runs/0/curves?columns=4000"];
    let requests = hostile.map(|(lines, code)| ("/api/runs", lines, code)).into_iter();
    let requests = requests.chain(browser.map(|target| (target, &*cookie, 200)));
    for (target, lines, code) in requests.cycle().take(80) {
        let Some(answer) = ask(world, url, target, lines) else { return false };
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{target} {lines}: {answer}");
    }
    true
}

/// Arguments of a run of this many steps.
fn long_training(steps: &str) -> Vec<&str> {
    let train = TRAIN.iter().map(|it| if *it == "70" { steps } else { *it });
    train.chain(["--set", "train.eval_every=50", "--json"]).collect()
}

/// Summary of a run that serves its dashboard during a whole attack; none if it ended before.
fn attacked_run(world: &World, folder: &Folder, steps: &str) -> Option<serde_json::Value> {
    let mut command = folder.command(&[&long_training(steps)[..], &["--serve"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut attacked = Server(child);
    let mut log = BufReader::new(attacked.0.stderr.take().expect("it is a pipe"));
    let mut url = String::new();
    while !url.contains("dashboard: http://") {
        url.clear();
        assert!(log.read_line(&mut url).expect("its log") > 0, "no address");
    }
    let url = url.trim().rsplit(' ').next().expect("an address").to_owned();
    let mut idle = Vec::new();
    if !attack(world, &url, &mut idle) || attacked.0.try_wait().expect("it is ours").is_some() {
        return None;
    }
    let mut served = String::new();
    let mut stdout = attacked.0.stdout.take().expect("it is a pipe");
    stdout.read_to_string(&mut served).expect("its summary");
    assert!(attacked.0.wait().expect("it ends").success(), "{served}");
    Some(serde_json::from_str(&served).expect("JSON"))
}

#[test]
fn a_dashboard_under_attack_beside_training_changes_no_bit_and_a_busy_port_is_a_warning() {
    let folder = Folder::new();
    let world = lockstep_platform::real();
    // Both ends of a thousand connections.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("ours");
    // On a machine that trains faster than it connects, a longer run outlasts the attack.
    let outlasts = |steps| Some((steps, attacked_run(&world, &folder, steps)?));
    let found = ["400", "2000", "10000"].into_iter().find_map(outlasts);
    let (steps, served) = found.expect("a run outlasts the attack");
    let plain = folder.json(&long_training(steps));
    for hash in ["losses_hash", "weights_hash"] {
        assert_eq!(served[hash], plain[hash], "{hash}");
    }

    let taken = world.net().listen("127.0.0.1:0").expect("a port");
    let addr = format!("--serve={}", taken.local_addr());
    let busy = folder.succeed(&[&TRAIN[..], &[&addr]].concat());
    let warning = "address already in use; the run continues without its dashboard";
    assert!(busy.stderr.contains(warning), "{}", busy.stderr);
}
