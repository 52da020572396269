//! A server of one run whose events a test writes, and a client of plain HTTP.

#![allow(dead_code, reason = "each test file uses a part of it")]

use lockstep_dashboard::server::Limits;
use lockstep_dashboard::token::Token;
use lockstep_dashboard::{Query, RunInfo, Runs, ServeError, Server, Sources, State, Tools};
use lockstep_platform::{ScratchDir, Stream, World};
use lockstep_telemetry::{Event, Stamped, VERSION};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Deadline of a client.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// One run.
struct OneRun {
    folder: PathBuf,
}

impl Runs for OneRun {
    fn folders(&self) -> Vec<PathBuf> {
        vec![self.folder.clone()]
    }

    fn events(&self, folder: &Path) -> PathBuf {
        folder.join("events.jsonl")
    }

    fn state(&self, _: &Path) -> State {
        State { name: "running".to_owned(), reason: None }
    }

    fn info(&self, _: &Path) -> RunInfo {
        RunInfo { layout: Some("DP2".to_owned()), ..RunInfo::default() }
    }

    fn explain(&self, _: &Path) -> Result<Value, String> {
        Ok(json!({ "verdict": "compute" }))
    }

    fn planned_step(&self, _: &Path) -> Result<Value, String> {
        Err("no step is finished yet".to_owned())
    }
}

/// Tools that repeat the query.
struct Echo;

impl Tools for Echo {
    fn plan_choices(&self) -> Value {
        json!({ "models": ["llama3-8b"] })
    }

    fn plan(&self, query: &Query) -> Result<Value, String> {
        query.get("model").map(|model| json!({ "model": model })).ok_or("no model".to_owned())
    }

    fn scaling(&self, _: &Query) -> Result<Value, String> {
        Ok(json!({ "pictures": [] }))
    }

    fn lab_choices(&self) -> Value {
        json!({ "walks": ["ring"] })
    }

    fn experiment(&self, query: &Query) -> Result<Value, String> {
        Ok(json!({ "params": query.all("param").collect::<Vec<_>>() }))
    }

    fn measure(&self, query: &Query) -> Result<Value, String> {
        Ok(json!({ "name": query.get("name") }))
    }

    fn walk(&self, _: &Query) -> Result<Value, String> {
        Ok(json!({ "frames": [] }))
    }
}

/// A server and its run.
pub(crate) struct Fixture {
    pub(crate) world: World,
    pub(crate) server: Option<Server>,
    scratch: ScratchDir,
}

impl Fixture {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::with(limits, Some(Arc::new(Echo)))
    }

    /// A server beside a training.
    pub(crate) fn without_tools() -> Self {
        Self::with(Limits::default(), None)
    }

    fn with(limits: Limits, tools: Option<Arc<dyn Tools>>) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "dashboard").unwrap();
        let runs = Arc::new(OneRun { folder: scratch.path().to_owned() });
        let sources = Sources { runs, tools };
        let token = Token::random(world.entropy());
        let server = Server::start(&world, "127.0.0.1:0", token, sources, limits).unwrap();
        Self { world, server: Some(server), scratch }
    }

    /// Another server of the run at an address.
    pub(crate) fn server_at(&self, addr: &str) -> Result<Server, ServeError> {
        let runs = Arc::new(OneRun { folder: self.scratch.path().to_owned() });
        let sources = Sources { runs, tools: None };
        let token = Token::random(self.world.entropy());
        Server::start(&self.world, addr, token, sources, Limits::default())
    }

    /// Host and port.
    pub(crate) fn addr(&self) -> &str {
        let url = self.server.as_ref().unwrap().url();
        url.trim_start_matches("http://").split('/').next().unwrap()
    }

    pub(crate) fn token(&self) -> &str {
        self.server.as_ref().unwrap().url().split("token=").nth(1).unwrap()
    }

    pub(crate) fn cookie(&self) -> String {
        let port = self.addr().split(':').nth(1).unwrap();
        format!("lockstep-{port}={}", self.token())
    }

    /// Appends events to the file of the run.
    pub(crate) fn record(&self, events: &[Event]) {
        let path = self.scratch.path().join("events.jsonl");
        let mut file = self.world.files().append(&path).unwrap();
        for event in events {
            let stamped = Stamped { v: VERSION, seconds: 1.0, rank: 0, event: event.clone() };
            let line = serde_json::to_string(&stamped).unwrap() + "\n";
            file.write_all(line.as_bytes()).unwrap();
        }
    }

    pub(crate) fn connect(&self) -> Box<dyn Stream> {
        let mut stream = self.world.net().connect(self.addr(), LONG).unwrap();
        stream.set_deadline(Some(LONG));
        stream
    }

    /// Sends bytes and reads until the server closes; a broken connection ends the answer.
    pub(crate) fn send(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that refuses early may have closed before the last byte is sent.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends a request with our host, the cookie and more headers.
    pub(crate) fn get(&self, target: &str, more: &str) -> String {
        let (addr, cookie) = (self.addr(), self.cookie());
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {addr}\r\nCookie: {cookie}\r\nConnection: close\r\n\
             {more}\r\n"
        );
        self.send(request.as_bytes())
    }

    /// The JSON of an answer.
    pub(crate) fn json(&self, target: &str) -> Value {
        let answer = self.get(target, "");
        assert_eq!(status(&answer), 200, "{answer}");
        serde_json::from_str(body(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Asks until the answer satisfies a condition.
    pub(crate) fn json_when(&self, target: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let start = self.world.clock().now();
        loop {
            let value = self.json(target);
            if is_it(&value) {
                return value;
            }
            assert!(self.world.clock().since(start) < LONG, "{target} stays {value}");
            self.world.clock().sleep(Duration::from_millis(20));
        }
    }
}

pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

pub(crate) fn step(step: u64, loss: f64) -> Event {
    Event::Step {
        step,
        loss,
        lr: 1e-3,
        grad_norm: 1.0,
        tokens_per_second: 100.0,
        step_seconds: 0.5,
        data_wait_seconds: 0.0,
        exposed_communication_seconds: 0.1,
        straggler_wait_seconds: 0.0,
        is_skipped: false,
        seqlen: None,
        loss_scale: None,
        zeroed_fraction: None,
        preference_accuracy: None,
        preference_margin: None,
    }
}
