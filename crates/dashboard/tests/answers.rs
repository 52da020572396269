//! The page and the figures of a run that is still written, from a real server.

#![expect(clippy::unwrap_used, reason = "a failed test should stop")]

mod common;

use common::{Fixture, body, status, step};
use lockstep_dashboard::server::Limits;
use lockstep_telemetry::Event;
use serde_json::Value;
use std::io::{Read, Write};

#[test]
fn the_address_opens_the_page_and_sets_a_cookie() {
    let fixture = Fixture::new(Limits::default());
    let (addr, token) = (fixture.addr(), fixture.token());
    let request = format!(
        "GET /?token={token} HTTP/1.1\r\nHost: {addr}\r\nSec-Fetch-Site: none\r\n\
         Connection: close\r\n\r\n"
    );
    let answer = fixture.send(request.as_bytes());
    assert_eq!(status(&answer), 200);
    assert!(body(&answer).starts_with("<!doctype html>"), "{answer}");
    let head = answer.to_lowercase();
    let cookie = format!("set-cookie: {}; path=/; httponly; samesite=strict", fixture.cookie());
    assert!(head.contains(&cookie), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
    assert!(head.contains("x-content-type-options: nosniff"));
    assert!(head.contains("cache-control: no-store"));
    // Files of the page come with the cookie, which is not set again.
    for path in
        ["/app.js", "/workers.js", "/elements.js", "/style.css", "/icon.svg", "/", "/plan", "/lab"]
    {
        let answer = fixture.get(path, "Sec-Fetch-Site: same-origin\r\n");
        assert_eq!(status(&answer), 200, "{path}");
        assert!(!answer.to_lowercase().contains("set-cookie"), "{path}");
    }
}

#[test]
fn curves_details_and_reports_follow_the_events() {
    let fixture = Fixture::new(Limits::default());
    let steps: Vec<Event> = (1..=5000).map(|number| step(number, 1.0 / number as f64)).collect();
    fixture.record(&steps);
    fixture.record(&[
        Event::Warning { message: "<script>alert(1)</script>".to_owned() },
        step(5001, f64::NAN),
        Event::Evaluated {
            step: 5000,
            validation_loss: 0.5,
            perplexity: 1.6,
            train_seconds: 1.0,
            wire_bytes: 0,
        },
    ]);
    let runs = fixture.json_when("/api/runs", |runs| runs[0]["step"] == 5001);
    assert_eq!(runs[0]["state"]["name"], "running");
    assert_eq!((&runs[0]["loss"], &runs[0]["validation_loss"]), (&Value::Null, &0.5.into()));
    let curves = fixture.json("/api/runs/0/curves?columns=100");
    let loss = &curves["curves"]["loss"];
    let (x, y) = (loss["x"].as_array().unwrap(), loss["y"].as_array().unwrap());
    assert!(x.len() == y.len() && x.len() <= 400, "{} points", x.len());
    assert_eq!((&x[0], &x[x.len() - 1]), (&1.0.into(), &5000.0.into()));
    assert_eq!(curves["curves"]["validation_loss"]["y"][0], 0.5);
    let part = fixture.json("/api/runs/0/curves?first=10&last=12");
    assert_eq!(part["curves"]["loss"]["x"], serde_json::json!([10.0, 11.0, 12.0]));
    // Scripts get all figures of the steps in a list, and send the token instead of a cookie.
    let steps = fixture.json("/api/runs/0/steps");
    let steps = steps.as_array().unwrap();
    assert_eq!((steps.len(), &steps[4]["step"], &steps[4]["loss"]), (5001, &5.into(), &0.2.into()));
    assert_eq!((&steps[5000]["loss"], &steps[5000]["step_seconds"]), (&Value::Null, &0.5.into()));
    let (addr, token) = (fixture.addr(), fixture.token());
    let by_script = |target: &str, more: &str| {
        let head = format!("Host: {addr}\r\nConnection: close\r\n{more}\r\n");
        fixture.send(format!("GET {target} HTTP/1.1\r\n{head}").as_bytes())
    };
    let target = format!("/api/runs/{}/steps?first=7&last=7", runs[0]["id"]);
    let expected = by_script(&format!("{target}&token={token}"), "");
    assert!(body(&expected).starts_with("[{\"step\":7,\"loss\":0.142857"), "{expected}");
    assert!(!expected.to_lowercase().contains("set-cookie"), "{expected}");
    let bearer = by_script(&target, &format!("Authorization: Bearer {token}\r\n"));
    assert_eq!(body(&bearer), body(&expected));
    let name = runs[0]["name"].as_str().unwrap();
    assert_eq!(fixture.json(&format!("/api/runs/{name}/steps?first=7&last=7"))[0]["step"], 7);
    assert_eq!(status(&by_script(&target, "")), 401);
    let details = fixture.json("/api/runs/0/details");
    assert_eq!(details["log"][0]["text"], "<script>alert(1)</script>");
    assert_eq!(fixture.json("/api/runs/0/explain")["verdict"], "compute");
    let planned = fixture.get("/api/runs/0/planned", "");
    assert_eq!(status(&planned), 409);
    assert!(body(&planned).contains("no step is finished yet"), "{planned}");
}

#[test]
fn changes_are_pushed_to_an_open_page() {
    let fixture = Fixture::new(Limits::default());
    let mut stream = fixture.connect();
    let (addr, cookie) = (fixture.addr(), fixture.cookie());
    let request = format!("GET /api/live HTTP/1.1\r\nHost: {addr}\r\nCookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    let mut read_until = |part: &str| {
        while !text.contains(part) {
            let mut block = [0; 1024];
            let len = stream.read(&mut block).unwrap();
            assert!(len > 0, "the stream ended: {text}");
            text += &String::from_utf8_lossy(&block[..len]);
        }
    };
    read_until("text/event-stream");
    fixture.record(&[step(1, 2.5)]);
    read_until("\"step\":1,");
    fixture.record(&[step(2, 2.25)]);
    read_until("\"loss\":2.25,");
}

#[test]
fn the_planner_and_the_lab_get_their_queries_whole() {
    let fixture = Fixture::new(Limits::default());
    assert_eq!(fixture.json("/api/plan/choices")["models"][0], "llama3-8b");
    assert_eq!(fixture.json("/api/plan?model=gpt3%2D175b")["model"], "gpt3-175b");
    let answer = fixture.json("/api/lab/experiment?param=ranks%3D8&param=bytes%3D1+MB");
    assert_eq!(answer["params"], serde_json::json!(["ranks=8", "bytes=1 MB"]));
    assert!(fixture.json("/api/plan/scaling?model=x")["pictures"].is_array());
    assert_eq!(fixture.json("/api/lab/real?name=stragglers")["name"], "stragglers");
    let same_site = "Sec-Fetch-Site: same-origin\r\n";
    for (path, code) in [("/api/plan", 409), ("/api/plan?model=%ff", 400), ("/api/lab/other", 404)]
    {
        assert_eq!(status(&fixture.get(path, same_site)), code, "{path}");
    }
    let refused = fixture.get("/api/plan", same_site);
    assert_eq!(body(&refused), "{\"reason\":\"no model\"}");
}

#[test]
fn without_tools_their_pages_and_answers_are_absent() {
    let fixture = Fixture::without_tools();
    let get = |path: &str| fixture.get(path, "");
    for path in
        ["/plan", "/lab", "/plan.js", "/api/plan/choices", "/api/plan?model=x", "/api/lab/walk"]
    {
        assert_eq!(status(&get(path)), 404, "{path}");
    }
    let page = get("/");
    assert_eq!(status(&page), 200);
    assert!(!page.contains("/plan") && page.contains("/app.js"), "{page}");
}
