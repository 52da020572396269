//! Prediction errors on a published table: Table 1 of "Efficient Large-Scale Language Model
//! Training on GPU Clusters Using Megatron-LM" (SC 2021). More tables: `lockstep plan validate`.

use lockstep_planner::Calibration;
use lockstep_planner::pipeline::Pipelines;
use lockstep_planner::validate::score::score;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("megatron-sc21-table-1.csv");

#[test]
fn the_first_table_of_the_megatron_paper_is_within_five_percent() {
    let calibrations: BTreeMap<String, Calibration> =
        Calibration::all().into_iter().map(|known| (known.name.clone(), known)).collect();
    let score = score("megatron-sc21", TABLE, &calibrations, &mut Pipelines::default()).0;
    assert_eq!((score.rows, score.rows_predicted), (10, 10), "{:?}", score.skipped);
    let error = score.step_time_mape.expect("all rows have step times");
    assert!(error <= 0.05, "the mean error of step times is {error}");
}
