//! What workers learn from, and in which order.

use super::Lint;
use crate::recipe::{Order, Placement, Recipe};

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "own-text",
        condition: "workers learn from different texts, so their gradients lean different ways",
        threshold: "data.placement = local with several workers",
        advice: "compare with data.placement = \"partitioned\" where the text may be shared",
        rows: &["457", "H33", "H34"],
        check: own_text,
    },
    Lint {
        id: "reading-order",
        condition: "neighbouring sequences share a batch, so its samples are alike",
        threshold: "data.order = sequential",
        advice: "use \"random\" unless the order is the point",
        rows: &["458"],
        check: reading_order,
    },
];

fn own_text(recipe: &Recipe) -> Option<String> {
    let is_local = recipe.data.placement == Placement::Local;
    (is_local && recipe.run.workers > 1)
        .then(|| "data.placement = \"local\" gives each worker a text of its own".to_owned())
}

fn reading_order(recipe: &Recipe) -> Option<String> {
    (recipe.data.order == Order::Sequential)
        .then(|| "data.order = \"sequential\" fills batches with neighbours".to_owned())
}
