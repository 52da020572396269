//! Lines of events, as the documented format has them.

use super::*;

fn line(event: Event) -> String {
    let stamped = Stamped { v: VERSION, seconds: 3.25, rank: 0, event };
    serde_json::to_string(&stamped).unwrap()
}

#[test]
fn the_lines_are_the_documented_format() {
    let started = Event::RunStarted {
        recipe_hash: "ab".to_owned(),
        kernel_class: "f32-fma".to_owned(),
        num_params: 10,
        tokens_per_step: 4096,
        num_steps: 400,
        num_threads: 2,
        workers: 1,
        device: Some("cpu".to_owned()),
        microbatch: Some(2),
        recompute: Some("full".to_owned()),
        flops_per_token: Some(60.0),
        peak_flops_per_second: None,
    };
    assert_eq!(
        line(started),
        r#"{"v":2,"seconds":3.25,"rank":0,"event":"run_started","recipe_hash":"ab","#.to_owned()
            + r#""kernel_class":"f32-fma","num_params":10,"tokens_per_step":4096,"#
            + r#""num_steps":400,"num_threads":2,"workers":1,"device":"cpu","#
            + r#""microbatch":2,"recompute":"full","flops_per_token":60.0}"#
    );
    let step = Event::Step {
        step: 1,
        loss: 5.5,
        lr: 0.001,
        grad_norm: f64::NAN,
        tokens_per_second: 1e4,
        step_seconds: 0.5,
        data_wait_seconds: 0.0,
        exposed_communication_seconds: 0.0,
        straggler_wait_seconds: 0.0,
        is_skipped: false,
        loss_scale: None,
        zeroed_fraction: None,
        preference_accuracy: None,
        preference_margin: None,
        seqlen: None,
    };
    assert_eq!(
        line(step),
        r#"{"v":2,"seconds":3.25,"rank":0,"event":"step","step":1,"loss":5.5,"lr":0.001,"#
            .to_owned()
            + r#""grad_norm":"NaN","tokens_per_second":10000.0,"step_seconds":0.5,"#
            + r#""data_wait_seconds":0.0,"exposed_communication_seconds":0.0,"#
            + r#""straggler_wait_seconds":0.0,"is_skipped":false}"#
    );
    let finished = Event::RunFinished {
        steps: 400,
        final_loss: 1.5,
        validation_loss: None,
        losses_hash: "cd".to_owned(),
        weights_hash: "ef".to_owned(),
        run_seconds: 60.0,
    };
    assert_eq!(
        line(finished),
        r#"{"v":2,"seconds":3.25,"rank":0,"event":"run_finished","steps":400,"#.to_owned()
            + r#""final_loss":1.5,"validation_loss":null,"losses_hash":"cd","#
            + r#""weights_hash":"ef","run_seconds":60.0}"#
    );
}
