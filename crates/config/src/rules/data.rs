//! Rules about the training data and its distribution to workers.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{Placement, Source};
use crate::value::quoted;

pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    errors.extend(local_paths_depend_on_the_rank(context));
    errors.extend(data_server_has_an_address(context));
    errors
}

/// A path contains the rank if and only if workers read local files.
fn local_paths_depend_on_the_rank(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["data.source", "data.placement"];
    let data = &context.recipe.data;
    let is_local = data.placement == Placement::Local;
    if !context.all_valid(&involved) || data.source.depends_on_rank() == is_local {
        return None;
    }
    let rank = Source::RANK;
    Some(if is_local {
        let rule = format!("has no {rank} in it, which data.placement = \"local\" needs");
        context.error(
            &involved,
            rule,
            format!("try a path with {rank}, such as \"text-{rank}.txt\""),
        )
    } else {
        let rule = format!("has {rank} in it, which only data.placement = \"local\" fills in");
        context.error(&involved, rule, "set data.placement = \"local\" or remove it".to_owned())
    })
}

fn data_server_has_an_address(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["data.server", "data.placement"];
    let data = &context.recipe.data;
    let is_served = data.placement == Placement::Served;
    let has_port = data.server.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !context.all_valid(&involved) || !is_served || has_port {
        return None;
    }
    let rule = "is not the host:port of a data server, which data.placement = \"served\" needs";
    let example = quoted("127.0.0.1:7777");
    Some(context.error(&involved, rule.to_owned(), format!("try {example}")))
}
