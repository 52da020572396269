//! The pages of the planner and of the lab: they ask, and the caller computes.

use crate::runs::Runs;
use serde_json::Value;
use std::sync::Arc;

/// Names and values of a request, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Reads the query of an address, with its escapes; `None` if it is no text.
    pub fn parse(query: &str) -> Option<Self> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescape(name)?, unescape(value)?))
        });
        Some(Self { pairs: pairs.collect::<Option<_>>()? })
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Replaces `%41` by `A` and `+` by a space.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                (16 * high + low) as u8
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Computations of the pages. Calls may take seconds; they are never made on the thread that serves
/// connections, and one at a time. An error is a sentence for people.
pub trait Tools: Send + Sync {
    /// The models and devices that the page of the planner offers.
    fn plan_choices(&self) -> Value;

    /// The best layouts of a model on a cluster, with pictures.
    fn plan(&self, query: &Query) -> Result<Value, String>;

    /// Pictures of the throughput of the model over numbers of devices.
    fn scaling(&self, query: &Query) -> Result<Value, String>;

    /// The experiments of the lab with their parameters, and the names of the walks.
    fn lab_choices(&self) -> Value;

    /// Runs an experiment.
    fn experiment(&self, query: &Query) -> Result<Value, String>;

    /// Measures an experiment on this machine, beside its simulation.
    fn measure(&self, query: &Query) -> Result<Value, String>;

    /// Walks through a schedule.
    fn walk(&self, query: &Query) -> Result<Value, String>;
}

/// Computations of the caller.
#[derive(Clone)]
pub struct Sources {
    /// Runs.
    pub runs: Arc<dyn Runs>,
    /// The planner and the lab. Their pages are absent where a training must not be disturbed.
    pub tools: Option<Arc<dyn Tools>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_with_their_escapes() {
        let query = Query::parse("name=all-reduce&p=bytes%3D1+MB&p=ranks%3d8&empty&=x").unwrap();
        assert_eq!(query.get("name"), Some("all-reduce"));
        assert_eq!(query.all("p").collect::<Vec<_>>(), ["bytes=1 MB", "ranks=8"]);
        assert_eq!((query.get("empty"), query.get("absent")), (Some(""), None));
        assert_eq!(Query::parse(""), Some(Query::default()));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for bad in ["a=%", "a=%4", "a=%zz", "a=%ff", "%+1=a"] {
            assert_eq!(Query::parse(bad), None, "{bad}");
        }
    }
}
