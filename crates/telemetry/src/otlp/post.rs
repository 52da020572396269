//! POST of a body to a collector by HTTP/1.1, one connection each.

use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;
use std::time::Duration;

use lockstep_platform::World;

/// Time for a post, from the connection to the status.
const POST_TIME: Duration = Duration::from_secs(2);
/// Most bytes of an answer that are read; the status is in the first few.
const MAX_ANSWER_BYTES: usize = 4096;

/// Path of metrics (OTLP/HTTP).
const PATH: &str = "/v1/metrics";

/// URL of a collector: `http://host:port`, or with a path in front of `/v1/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    addr: String,
    path: String,
}

/// A URL that is no address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not http://host:port")]
pub struct InvalidEndpoint;

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(url: &str) -> Result<Self, InvalidEndpoint> {
        let rest = url.strip_prefix("http://").ok_or(InvalidEndpoint)?;
        let (addr, base) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = addr.rsplit_once(':').ok_or(InvalidEndpoint)?;
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_graphic());
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        if host.is_empty() || !is_port || !is_plain(rest) || addr.contains('@') {
            return Err(InvalidEndpoint);
        }
        let base = base.trim_end_matches('/');
        let slash = if base.is_empty() { "" } else { "/" };
        Ok(Self { addr: addr.to_owned(), path: format!("{slash}{base}{PATH}") })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.addr, self.path)
    }
}

/// A post that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Whether the same post may succeed later.
    pub(super) may_pass: bool,
}

/// Posts a body and reads the status.
pub(super) fn post(world: &World, endpoint: &Endpoint, body: &[u8]) -> Result<(), Failure> {
    let passing = |reason: String| Failure { reason, may_pass: true };
    let connected = world.net().connect(&endpoint.addr, POST_TIME);
    let mut stream = connected.map_err(|error| passing(error.to_string()))?;
    stream.set_deadline(Some(POST_TIME));
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nUser-Agent: lockstep\r\nConnection: close\r\n\r\n",
        endpoint.path,
        endpoint.addr,
        body.len()
    );
    let failed = |error: std::io::Error| passing(error.to_string());
    stream.write_all(head.as_bytes()).map_err(failed)?;
    stream.write_all(body).map_err(failed)?;
    let mut answer = Vec::new();
    let mut block = [0; 512];
    while !answer.contains(&b'\n') && answer.len() < MAX_ANSWER_BYTES {
        match stream.read(&mut block).map_err(failed)? {
            0 => break,
            len => answer.extend_from_slice(&block[..len]),
        }
    }
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).trim_end().to_owned();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match status.and_then(|status| status.parse::<u16>().ok()) {
        Some(200..=299) => Ok(()),
        // The statuses that the protocol calls retryable.
        Some(status @ (429 | 502 | 503 | 504)) => Err(passing(format!("status {status}"))),
        Some(status) => Err(Failure { reason: format!("status {status}"), may_pass: false }),
        None => Err(Failure { reason: format!("no HTTP status: {line:?}"), may_pass: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_address_and_a_path() {
        for (url, text) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
            ("http://collector:80/", "http://collector:80/v1/metrics"),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/metrics"),
        ] {
            assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for url in [
            "https://a:1",
            "a:1",
            "http://",
            "http://a",
            "http://a:0",
            "http://a:70000",
            "http://:1",
            "http://a:1/b c",
            "http://a:1/\r\nX: y",
            "http://u@a:1",
        ] {
            assert_eq!(url.parse::<Endpoint>(), Err(InvalidEndpoint), "{url}");
        }
    }
}
