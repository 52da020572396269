//! Rules about the text and how it reaches the workers.

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::{Placement, Source};
use crate::value::quoted;

pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    errors.extend(own_files_are_told_apart(facts));
    errors.extend(a_server_is_named(facts));
    errors
}

/// Workers read files of their own exactly where the path tells them apart.
fn own_files_are_told_apart(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["data.source", "data.placement"];
    let data = &facts.recipe.data;
    let is_local = data.placement == Placement::Local;
    if !facts.sound(&involved) || data.source.depends_on_rank() == is_local {
        return None;
    }
    let rank = Source::RANK;
    Some(if is_local {
        let rule = "does not tell workers apart, which data.placement = \"local\" needs".to_owned();
        facts.error(&involved, rule, format!("try a path with {rank}, such as \"text-{rank}.txt\""))
    } else {
        let rule = format!("has {rank} in it, which only data.placement = \"local\" fills in");
        facts.error(&involved, rule, "set data.placement = \"local\" or remove it".to_owned())
    })
}

fn a_server_is_named(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["data.server", "data.placement"];
    let data = &facts.recipe.data;
    let is_served = data.placement == Placement::Served;
    let has_port = data.server.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !facts.sound(&involved) || !is_served || has_port {
        return None;
    }
    let rule = "is not the host:port of a data server, which data.placement = \"served\" needs";
    let example = quoted("127.0.0.1:7777");
    Some(facts.error(&involved, rule.to_owned(), format!("try {example}")))
}
