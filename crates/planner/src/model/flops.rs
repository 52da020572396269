//! FLOPs of a training step under the three conventions in use.
//!
//! The "TFLOP/s" of one run differ by a third with the convention: with or without recomputation,
//! with or without the half of attention that the causal mask hides. Figures of different
//! conventions are not comparable; seconds are.

use super::Model;

/// Convention of counting FLOPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlopsConvention {
    /// Hardware FLOPs with full recomputation: 96BLsh²(1 + s/6h + V/16Lh) for a GPT (Narayanan et
    /// al. 2021).
    Hardware,
    /// Model FLOPs over all token pairs: 72BLsh²(1 + s/6h + V/12Lh) for a GPT (Korthikanti et al.
    /// 2022).
    Model,
    /// Model FLOPs over the token pairs that the causal mask leaves.
    Causal,
}

/// FLOPs of one step over `sequences` sequences.
pub fn step_flops(model: &Model, sequences: u64, counted: FlopsConvention) -> f64 {
    let tokens = (sequences * model.context) as f64;
    let pairs = match counted {
        FlopsConvention::Hardware | FlopsConvention::Model => 1.0,
        FlopsConvention::Causal => 0.5,
    };
    let scores = 2.0 * (model.query_width() + model.attended_width()) as f64;
    let attention = pairs * scores * model.context as f64 * model.layers as f64;
    let head = 2.0 * (model.vocab * model.width) as f64;
    let layers = 2.0 * matrices(model) as f64 + attention;
    // One forward and two backward passes; recomputation adds a forward pass of the layers, not of
    // the head.
    let passes = if counted == FlopsConvention::Hardware { 4.0 } else { 3.0 };
    tokens * (passes * layers + 3.0 * head)
}

/// Matrix entries in layers that multiply each token.
fn matrices(model: &Model) -> u64 {
    let attention = model.layers * model.attention_matrices();
    let dense = model.dense_layers() * model.ffn_matrices(model.ffn);
    let routed = model.experts.map_or(0, |experts| {
        let inner = experts.per_token * experts.ffn + experts.shared_ffn;
        (model.layers - experts.dense_layers)
            * (model.ffn_matrices(inner) + model.width * experts.num)
    });
    attention + dense + routed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::preset;

    #[test]
    fn the_definitions_are_the_published_closed_forms() {
        let model = Model::gpt("GPT 175B", 96, 12_288, 96, 51_200, 2048);
        let (b, l, s, h, v) = (1536.0, 96.0, 2048.0, 12_288.0, 51_200.0);
        let hardware = 96.0 * b * l * s * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
        let needed = 72.0 * b * l * s * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        close(step_flops(&model, 1536, FlopsConvention::Hardware), hardware);
        close(step_flops(&model, 1536, FlopsConvention::Model), needed);
    }

    #[test]
    fn gpt_3_takes_314_zettaflop_for_its_300_billion_tokens() {
        let model = preset("gpt3-175b").expect("it is one");
        let flops = step_flops(&model, 1, FlopsConvention::Causal) / 2048.0 * 300e9;
        assert!((flops / 314e21 - 1.0).abs() < 0.03, "{flops}");
    }
}
