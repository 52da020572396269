//! Hostile requests and clients against a real server.

#![expect(clippy::unwrap_used, reason = "a failed test should stop")]

mod common;

use common::{Fixture, LONG, body, status, step};
use lockstep_dashboard::connections::MAX_CONNECTIONS;
use lockstep_dashboard::server::Limits;
use lockstep_platform::Stream;
use std::io::{Read, Write};
use std::time::Duration;

/// Deadlines that a test can wait for.
const SHORT: Limits = Limits {
    head: Duration::from_millis(400),
    write: Duration::from_millis(300),
    connection: Duration::from_hours(1),
};

#[test]
fn no_path_leads_to_a_file() {
    let fixture = Fixture::new(Limits::default());
    for target in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/style.css/../../etc/passwd",
        "/assets/../Cargo.toml",
        "/events.jsonl",
        "/api/runs/../../etc/passwd/details",
        "/api/runs/..%2F..%2Fetc%2Fpasswd/details",
        "/api/runs/%2Fetc%2Fpasswd/curves",
        "/api/runs/-1/details",
        "/api/runs/1/details",
        "/api/runs/99999999999999999999999/details",
        "/api/runs/0%00/details",
        "/api/runs/0/details/../../../../etc/passwd",
        "/\\..\\..\\etc\\passwd",
    ] {
        let answer = fixture.get(target, "");
        assert!([400, 404].contains(&status(&answer)), "{target}: {answer}");
        assert!(!answer.contains("root:") && body(&answer).len() < 200, "{target}: {answer}");
    }
    // Absurd numbers are limited, not obeyed.
    fixture.record(&[step(1, 1.0)]);
    fixture.json_when("/api/runs", |runs| runs[0]["step"] == 1);
    for query in
        ["columns=99999999999", "columns=0", "columns=x&first=9&last=1", "first=-1", "&&=&"]
    {
        fixture.json(&format!("/api/runs/0/curves?{query}"));
    }
}

#[test]
fn strangers_foreign_names_and_foreign_sites_are_refused() {
    let fixture = Fixture::new(Limits::default());
    let (addr, cookie) = (fixture.addr().to_owned(), fixture.cookie());
    let of = |line: &str, headers: &[&str]| {
        let head = headers.join("\r\n");
        let request = format!("{line}\r\n{head}\r\nConnection: close\r\n\r\n");
        let answer = fixture.send(request.as_bytes());
        assert!(!body(&answer).contains("<html"), "{line}: {answer}");
        assert!(!answer.contains(fixture.token()), "{line}: {answer}");
        status(&answer)
    };
    let (host, cookie) = (format!("Host: {addr}"), format!("Cookie: {cookie}"));
    let get = "GET /api/runs HTTP/1.1";
    assert_eq!(of(get, &[&host]), 401, "no token");
    assert_eq!(of("GET /?token=00000000000000000000000000000000 HTTP/1.1", &[&host]), 401);
    assert_eq!(of("GET /?token HTTP/1.1", &[&host]), 401);
    assert_eq!(of(get, &[&host, "Cookie: lockstep=x"]), 401, "a wrong cookie");
    // A name that an attacker made to resolve to this host.
    assert_eq!(of(get, &["Host: rebind.example", &cookie]), 421);
    assert_eq!(of(get, &[&cookie]), 400, "no host");
    assert_eq!(of(get, &[&host, "Host: rebind.example", &cookie]), 400, "two hosts");
    // A page of another site makes the browser send a request with our cookie.
    assert_eq!(of(get, &[&host, &cookie, "Sec-Fetch-Site: cross-site"]), 403);
    assert_eq!(of(get, &[&host, &cookie, "Sec-Fetch-Site: same-site"]), 403);
    assert_eq!(of(get, &[&host, &cookie, "Origin: http://evil.example"]), 403);
    assert_eq!(of(get, &[&host, &cookie, "Origin: null"]), 403);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD"] {
        assert_eq!(of(&format!("{method} /api/runs HTTP/1.1"), &[&host, &cookie]), 405, "{method}");
    }
    assert_eq!(of("CONNECT example.com:443 HTTP/1.1", &[&host, &cookie]), 405);
    assert_eq!(of(get, &[&host, &cookie, "Content-Length: 10"]), 413);
    assert_eq!(of(get, &[&host, &cookie, "Transfer-Encoding: chunked"]), 413);
}

#[test]
fn oversized_and_broken_requests_end_at_once() {
    let fixture = Fixture::new(Limits::default());
    let long = |len: usize| "a".repeat(len);
    let answer = fixture.get(&format!("/?{}", long(4000)), "");
    assert_eq!(status(&answer), 414);
    let answer = fixture.get("/", &format!("X-Long: {}\r\n", long(100_000)));
    assert!([0, 431].contains(&status(&answer)), "{answer}");
    let many = "X-Many: 1\r\n".repeat(200);
    let answer = fixture.get("/", &many);
    assert!([0, 431].contains(&status(&answer)), "{answer}");
    for broken in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = fixture.send(&[broken, b"\r\n\r\n"].concat());
        assert!([0, 400, 401, 413, 505].contains(&status(&answer)), "{broken:?}: {answer}");
    }
    assert_eq!(status(&fixture.get("/", "")), 200, "others are served");
}

#[test]
fn a_client_that_sends_or_reads_slowly_is_closed() {
    let fixture = Fixture::new(SHORT);
    let clock = fixture.world.clock();
    // A byte now and then never completes a head.
    let mut slow = fixture.connect();
    let start = clock.now();
    let mut is_open = true;
    while is_open && clock.since(start) < 8 * SHORT.head {
        is_open = slow.write_all(b"a").is_ok();
        clock.sleep(Duration::from_millis(50));
    }
    assert!(!is_open, "still open after {:?}", clock.since(start));
    // Requests whose answers are never read fill the buffers; then the server gives up.
    let steps: Vec<_> = (1..=20_000).map(|number| step(number, 1.0 / number as f64)).collect();
    fixture.record(&steps);
    fixture.json_when("/api/runs", |runs| runs[0]["step"] == 20_000);
    let mut deaf = fixture.connect();
    let request = format!(
        "GET /api/runs/0/curves?columns=4000 HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n",
        fixture.addr(),
        fixture.cookie()
    );
    let start = clock.now();
    let mut is_open = true;
    while is_open && clock.since(start) < 10 * (SHORT.write + SHORT.head) {
        is_open = deaf.write_all(request.as_bytes()).is_ok();
        clock.sleep(Duration::from_millis(10));
    }
    assert!(!is_open, "still open after {:?}", clock.since(start));
    assert_eq!(status(&fixture.get("/", "")), 200, "others are served");
}

/// A request that keeps its connection.
fn ask_and_keep(fixture: &Fixture, cookie: &str) -> (Box<dyn Stream>, u16) {
    let mut stream = fixture.connect();
    let addr = fixture.addr();
    let request = format!("GET /icon.svg HTTP/1.1\r\nHost: {addr}\r\nCookie: {cookie}\r\n\r\n");
    let mut answer = [0; 256];
    let len = stream.write_all(request.as_bytes()).and_then(|()| stream.read(&mut answer));
    (stream, status(&String::from_utf8_lossy(&answer[..len.unwrap_or(0)])))
}

#[test]
fn a_thousand_idle_connections_make_room_for_a_browser_and_a_full_house_of_browsers_does_not() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    // With the deadlines of a user: nothing is closed because of its time.
    let fixture = Fixture::new(Limits::default());
    let (mut browser, of_browser) = ask_and_keep(&fixture, &fixture.cookie());
    assert_eq!(of_browser, 200);
    let idle: Vec<Box<dyn Stream>> = (0..1000).map(|_| fixture.connect()).collect();
    assert_eq!(status(&fixture.get("/", "")), 200, "a browser takes the place of the oldest");
    // Strangers are answered, but their places are free for others as well.
    let strangers: Vec<_> = (0..100).map(|_| ask_and_keep(&fixture, "lockstep-1=x")).collect();
    assert!(strangers.iter().all(|(_, code)| *code == 401));
    let mut num_closed = 0;
    for mut stream in idle.into_iter().take(1000 - MAX_CONNECTIONS) {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        num_closed += usize::from(answer.is_empty());
    }
    assert_eq!(num_closed, 1000 - MAX_CONNECTIONS, "idle ones were closed without an answer");
    // The first browser has kept its connection through all of this.
    let request = format!(
        "GET /icon.svg HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n",
        fixture.addr(),
        fixture.cookie()
    );
    browser.write_all(request.as_bytes()).unwrap();
    assert!(browser.read(&mut [0; 256]).unwrap() > 0, "it is closed");
    // Browsers with the token are not closed for each other.
    let browsers: Vec<_> =
        (0..2 * MAX_CONNECTIONS).map(|_| ask_and_keep(&fixture, &fixture.cookie())).collect();
    let served = browsers.iter().filter(|(_, code)| *code == 200).count();
    assert_eq!(served, MAX_CONNECTIONS - 1, "beside the first one");
    assert!(browsers[MAX_CONNECTIONS..].iter().any(|(_, code)| *code == 503));
    // Those that leave make room.
    drop(browsers);
    let start = fixture.world.clock().now();
    while status(&fixture.get("/", "")) != 200 {
        assert!(fixture.world.clock().since(start) < LONG, "no room");
    }
}

#[test]
fn a_stopped_server_frees_its_port_and_a_taken_port_is_an_error() {
    let mut fixture = Fixture::new(Limits::default());
    let addr = fixture.addr().to_owned();
    let runs = Fixture::new(Limits::default());
    assert_ne!(runs.addr(), addr);
    let taken = runs.server_at(&addr).err().unwrap().to_string();
    assert_eq!(taken, format!("cannot listen on {addr}: address already in use"));
    fixture.server = None;
    assert!(runs.server_at(&addr).is_ok(), "the port is free");
}
