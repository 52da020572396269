//! Lints about training data and its order.

use super::Lint;
use crate::recipe::{Order, Placement, Recipe};

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "local-data",
        condition: "workers train on different data, so their gradients are heterogeneous",
        threshold: "data.placement = local with several workers",
        advice: "compare with data.placement = \"partitioned\" where the data may be shared",
        check: local_data,
    },
    Lint {
        id: "sequential-order",
        condition: "a batch holds neighbouring sequences, so its samples are correlated",
        threshold: "data.order = sequential",
        advice: "use \"random\" unless the order matters",
        check: sequential_order,
    },
];

fn local_data(recipe: &Recipe) -> Option<String> {
    let is_local = recipe.data.placement == Placement::Local;
    (is_local && recipe.run.workers > 1)
        .then(|| "data.placement = \"local\" gives each worker data of its own".to_owned())
}

fn sequential_order(recipe: &Recipe) -> Option<String> {
    (recipe.data.order == Order::Sequential)
        .then(|| "data.order = \"sequential\" fills batches with neighbouring sequences".to_owned())
}
