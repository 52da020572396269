//! `lockstep plan` for clusters: layout search, given layouts, published runs.

use crate::plan::refusal;
use crate::process::{Folder, assert_keys};

#[test]
fn a_cluster_is_searched_and_the_best_layout_comes_with_its_bill() {
    let folder = Folder::new();
    let plan = folder.json(&["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb", "--json"]);
    let names = "feasible memory step_seconds compute_seconds exposed_communication_seconds \
        bubble_fraction mfu tokens_per_second days dollars layout alternatives layouts_examined \
        tflops_per_device tokens_per_second_per_device batch context precision";
    assert_keys(&plan, names);
    let memory = &plan["memory"];
    let parts = ["weights", "gradients", "optimizer", "activations", "buffers"];
    let sum: u64 = parts.iter().filter_map(|part| memory[format!("{part}_bytes")].as_u64()).sum();
    assert_eq!(memory["total_bytes"].as_u64(), Some(sum));
    assert!(memory["needed_bytes"].as_u64() <= memory["device_bytes"].as_u64(), "{memory}");
    assert!(memory["fragmentation_bytes"].as_u64() > Some(0), "{memory}");
    assert!(memory["library_bytes"].as_u64() > Some(0), "{memory}");
    let mfu = plan["mfu"].as_f64().expect("a number");
    assert!((0.3..0.7).contains(&mfu), "{mfu}");
    let text = folder.run(&["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb"]).stdout;
    let parts = ["compute   ", "TFLOP/s per GPU", "tokens/s per GPU", "global batch", "TP tensor"];
    let more = ["sequence length", "tokens per step, bf16", "layouts examined"];
    for part in parts.iter().chain(&more) {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn parts_of_memory_and_time_sum_to_the_totals() {
    let folder = Folder::new();
    let command = ["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb", "--layout"];
    for layout in ["tp=8,pp=2,dp=4", "tp=8,pp=4,dp=2", "tp=4,pp=1,dp=16,zero=1"] {
        let plan = folder.json(&[&command[..], &[layout, "--json"]].concat());
        let seconds = |part: &str| plan[format!("{part}_seconds")].as_f64().expect("a number");
        let parts = ["compute", "exposed_communication", "bubble", "host", "update", "loading"]
            .map(seconds);
        let (sum, total) = (parts.iter().sum::<f64>(), seconds("step"));
        assert!((sum / total - 1.0).abs() < 1e-9, "{layout}: {sum} of {total}");
        let is_piped = !layout.contains("pp=1");
        assert_eq!(seconds("bubble") > 0.0, is_piped, "{layout}");
        let memory = &plan["memory"];
        let bytes = |part: &str| memory[format!("{part}_bytes")].as_u64().expect("a number");
        let more = bytes("fragmentation") + bytes("library");
        assert_eq!(bytes("total") + more, bytes("needed"), "{memory}");
        let text = folder.succeed(&[&command[..], &[layout]].concat()).stdout;
        assert!(
            text.contains(", fragmentation ") && text.contains(", library overhead "),
            "{text}"
        );
    }
}

#[test]
fn a_layout_is_taken_as_megatron_writes_it_or_refused_with_the_reason() {
    let folder = Folder::new();
    let layout = "TP2 PP8 DP4 CP4 EP8 VPP2 mbs 1 ZeRO-1 SP";
    let command = ["plan", "--model", "mixtral-8x7b", "--cluster", "256xh100-80gb", "--layout"];
    // Experts lie on data-parallel ranks, of which there are four.
    let error = refusal(&folder, &[&command[..], &[layout]].concat());
    assert!(error.contains("expert = 8 does not divide data = 4; try 4"), "{error}");
    let layout = layout.replace("EP8", "EP4");
    let plan = folder.json(&[&command[..], &[&layout, "--json"]].concat());
    assert_eq!(plan["layout"]["brief"], *layout, "{}", plan["layout"]);
}

#[test]
fn every_invalid_argument_is_reported_with_a_fix() {
    let folder = Folder::new();
    let arguments = ["plan", "--model", "gpt9", "--cluster", "0xabacus", "--batch", "0"];
    let error = refusal(&folder, &[&arguments[..], &["--tokens", "-1"]].concat());
    for wrong in ["--model gpt9", "--cluster 0xabacus", "--batch 0", "--tokens -1"] {
        let line = error.lines().find(|line| line.contains(wrong));
        assert!(line.is_some_and(|line| line.contains("; try ")), "{wrong}: {error}");
    }
    assert!(!error.contains("error: error:"), "{error}");
    folder.write("cluster.toml", b"device = \"a100-80gb\"\ndevices = 0\nnetwork_gbps = -1.0\n");
    let arguments = ["plan", "--model", "gpt2", "--cluster", "cluster.toml"];
    let error = refusal(&folder, &arguments);
    assert!(error.contains("devices = 0") && error.contains("network_gbps = -1"), "{error}");
    let error = refusal(&folder, &["plan", "--model", "gpt3-175b", "--cluster", "8xv100-16gb"]);
    assert!(error.contains("fits in 8 devices with 16 GiB each, 6 % of it in reserve"), "{error}");
    // The number of devices that is suggested suffices.
    let (_, more) = error.trim().rsplit_once("; try --cluster ").expect("a suggestion");
    assert!(more.ends_with("xv100-16gb"), "{error}");
    folder.succeed(&["plan", "--model", "gpt3-175b", "--cluster", more]);
    let error = refusal(&folder, &["plan", "--model", "gpt2", "--cluster", "99999999999xtpu-v4"]);
    assert!(error.contains("devices are too many; try at most 1048576"), "{error}");
    folder.write(
        "frail.toml",
        b"device = \"h100-80gb\"\ndevices = 64\nfailures_per_node_day = 900\n",
    );
    let error = refusal(&folder, &["plan", "--model", "gpt3-6.7b", "--cluster", "frail.toml"]);
    assert!(error.contains("the run would never end") && error.contains("; try "), "{error}");
}

#[test]
fn a_given_layout_is_priced_or_refused_with_every_broken_rule() {
    // BLOOM trained on 384 GPUs as TP4 PP12 DP8.
    let folder = Folder::new();
    let plan = ["plan", "--model", "bloom-176b", "--cluster", "384xa100-80gb", "--batch", "2304"];
    let layout = ["--layout", "tensor=4,pipeline=12,data=8,zero=1,recompute=full", "--json"];
    let report = folder.json(&[&plan[..], &layout].concat());
    assert_eq!(report["layouts_examined"], 1);
    assert_eq!(report["layout"]["pipeline"], 12);
    let error =
        refusal(&folder, &[&plan[..], &["--layout", "tensor=5,pipeline=12,data=48"]].concat());
    for wrong in ["tensor = 5 does not divide heads", "2880 devices"] {
        let line = error.lines().find(|line| line.contains(wrong));
        assert!(line.is_some_and(|line| line.contains("; try ")), "{wrong}: {error}");
    }
}

#[test]
fn a_given_layout_that_does_not_fit_is_printed_and_refused() {
    let folder = Folder::new();
    let plan = ["plan", "--model", "gpt3-175b", "--cluster", "8xa100-80gb", "--layout", "data=8"];
    let finished = folder.run(&plan);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stdout.contains("does not fit: TP1 PP1 DP8"), "{}", finished.stdout);
    assert!(finished.stderr.contains("GiB; try "), "{}", finished.stderr);
}

#[test]
fn a_model_excludes_a_recipe_and_any_number_of_devices_has_layouts() {
    let folder = Folder::new();
    let model = ["plan", "--model", "llama3-8b", "--cluster", "96xh100-80gb"];
    let error = refusal(&folder, &[&model[..], &["--set", "train.batch=8"]].concat());
    assert!(error.contains("give either --model or a recipe"), "{error}");
    // The data-parallel degree may be three times a power of two, if the batch is.
    let report = folder.json(&[&model[..], &["--json"]].concat());
    assert_eq!(report["batch"].as_u64().map(|batch| batch % 3), Some(0), "{}", report["batch"]);
    assert_eq!((report["devices"].as_u64(), report["nodes"].as_u64()), (Some(96), Some(12)));
    folder.write("small.toml", b"device = \"v100-16gb\"\ndevices = 8\n");
    let error = refusal(&folder, &["plan", "--model", "gpt3-175b", "--cluster", "small.toml"]);
    assert!(error.contains("in small.toml") && error.contains("; try devices = "), "{error}");
}

#[test]
fn tables_without_a_single_run_are_refused() {
    let folder = Folder::new();
    folder.write("other.csv", b"source,gpu,value\na,b,3\n");
    folder.write("empty.csv", b"");
    let error = refusal(&folder, &["plan", "validate", "other.csv", "empty.csv"]);
    assert!(error.contains("other: this is no table of runs"), "{error}");
    assert!(error.contains("empty: it has no rows"), "{error}");
    let error = refusal(&folder, &["plan", "calibrate", "other.csv", "--out", "constants"]);
    assert!(error.contains("this is no table of runs"), "{error}");
    assert!(!folder.path().join("constants").exists(), "nothing is written");
    let error = refusal(&folder, &["plan", "validate", "other.csv", "--fit", "0"]);
    assert!(error.contains("--fit 0 fits nothing; try --fit 8"), "{error}");
}

#[test]
fn a_plan_is_written_as_one_page_with_pictures() {
    let folder = Folder::new();
    let plan = ["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb", "--html", "plan.html"];
    let report = folder.json(&[&plan[..], &["--what-if", "--json"]].concat());
    assert!(report["strong_scaling"]["points"].as_array().is_some_and(|points| points.len() > 2));
    assert!(report["risk"]["chance_to_lose_a_day"].as_f64().is_some_and(|chance| chance < 1.0));
    assert!(report["upgrades"].as_array().is_some_and(|upgrades| upgrades.len() > 5));
    let page = String::from_utf8(folder.read("plan.html")).expect("text");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.matches("<svg").count() >= 3, "memory and two curves");
    assert!(!page.contains("<script") && !page.contains("src="), "nothing from elsewhere");
    for named in ["sequences per second</text>", "devices</text>", ">ideal<", "GiB per device"] {
        assert!(page.contains(named), "{named}");
    }
    let plan = ["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb", "--html", "cut.html"];
    let layout = "tensor=2,pipeline=4,data=8,microbatch=1,zero=1";
    folder.succeed(&[&plan[..], &["--batch", "512", "--layout", layout]].concat());
    let page = String::from_utf8(folder.read("cut.html")).expect("text");
    assert!(page.contains("the first 8 of 64 micro-batches"), "not all of them are drawn");
}

#[test]
fn the_best_layout_is_written_as_a_recipe_that_the_engine_accepts() {
    let folder = Folder::new();
    let arguments = ["plan", "--preset", "tiny", "--cluster", "2xepyc-9654"];
    let finished = folder.run(&[&arguments[..], &["--write", "best.toml"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let finished = folder.run(&["config", "best.toml"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    // Keys outside of the layout stay unchanged.
    folder.write("own.toml", b"[train]\nseed = 7\nbatch = 64\n\n[optim]\nlr = 0.01\n");
    let arguments = ["plan", "own.toml", "--cluster", "4xa100-80gb", "--write", "best.toml"];
    assert_eq!(folder.run(&arguments).code, Some(0));
    let text = String::from_utf8(folder.read("best.toml")).expect("text");
    for line in ["seed = 7", "lr = 0.01", "batch = 64", "workers = 4"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert_eq!(folder.run(&["config", "best.toml"]).code, Some(0));
}

#[test]
fn a_plan_says_what_this_engine_cannot_run() {
    let folder = Folder::new();
    let line = "this engine cannot run it: ";
    let planned = ["plan", "--model", "llama3-70b", "--cluster", "256xh100-80gb"];
    let degrees = "tp=2,pp=8,dp=4,cp=4,sp=true,zero=1,schedule=zero-bubble";
    let layout = ["--batch", "512", "--layout", degrees];
    let text = folder.run(&[&planned[..], &layout].concat()).stdout;
    let reasons = "context parallelism (CP4); direct transfers between h100-80gb devices\n";
    assert!(text.contains(&format!("{line}{reasons}")), "{text}");
    let plan = folder.json(&[&planned[..], &layout, &["--json"]].concat());
    assert_eq!(plan["runnable"], false);
    assert_eq!(plan["not_runnable"][0], "context parallelism (CP4)");
    assert_eq!(plan["layout"]["unsupported"][0], "context parallelism (CP4)");

    let here = ["plan", "--preset", "tiny", "--cluster", "2xepyc-9654"];
    let text = folder.run(&here).stdout;
    assert!(text.contains("best layout: ") && !text.contains(line), "{text}");
    let plan = folder.json(&[&here[..], &["--json"]].concat());
    assert_eq!(plan["runnable"], true);
    assert_eq!(plan["not_runnable"].as_array().map(Vec::len), Some(0));
}

#[test]
fn each_section_of_a_plan_prints_alone() {
    let folder = Folder::new();
    let cluster = ["--model", "gpt3-13b", "--cluster", "64xa100-80gb"];
    let plan = |section: &str| folder.run(&[&["plan", section], &cluster[..]].concat()).stdout;
    let (memory, time, layouts) =
        ("memory of the fullest device", "exposed communication", "examined");
    for (section, has, has_not) in
        [("memory", memory, time), ("time", time, memory), ("search", layouts, memory)]
    {
        let text = plan(section);
        assert!(text.contains(has) && !text.contains(has_not), "{section}: {text}");
    }
    for convention in ["causal", "with full recompute"] {
        assert!(plan("time").contains(convention), "{convention}");
    }
    let here = folder.run(&["plan", "memory", "--preset", "tiny"]).stdout;
    assert!(here.contains("activations") && !here.contains("time  "), "{here}");
    let error = refusal(&folder, &["plan", "search"]);
    assert!(error.contains("needs --cluster; try "), "{error}");
}

#[test]
fn oversubscribed_racks_and_spines_slow_communication() {
    let folder = Folder::new();
    let plan = |wired: &str| {
        let text = format!("device = \"a100-80gb\"\ndevices = 256\nnic_gbps = 12.5\n{wired}");
        folder.write("cluster.toml", text.as_bytes());
        let layout = "tensor=8,data=32,zero=0";
        let arguments = ["plan", "--model", "gpt3-2.7b", "--cluster", "cluster.toml"];
        let report = folder.json(&[&arguments[..], &["--layout", layout, "--json"]].concat());
        report["exposed_communication_seconds"].as_f64().expect("a number")
    };
    let full = plan("");
    // One message in eight of a ring over eight nodes leaves the rack.
    let few = plan("topology = \"tree\"\nnodes_per_rack = 8\noversubscription = 4.0\n");
    assert!((few / full - 1.0).abs() < 1e-9, "{full} {few}");
    let racks = "topology = \"tree\"\nnodes_per_rack = 8\noversubscription = 16.0\n";
    let one_spine = plan(racks);
    let spines = plan(&format!("{racks}racks_per_spine = 2\nspine_oversubscription = 4.0\n"));
    assert!(full < one_spine && one_spine < spines, "{full} {one_spine} {spines}");
}

#[test]
fn calibrations_are_fitted_to_runs_and_used_by_plans() {
    let folder = Folder::new();
    // Four runs that take a third longer than the device type's calibration predicts.
    let header = "id,model,arch,layers,hidden,heads,vocab,seq,gpu,gpu_mem_gb,gpus,tp,pp,dp,gbs,mbs,\
        precision,recompute,schedule,step_time_s,status\n";
    let rows: String = [(4, 1.4), (8, 2.8), (16, 5.6), (32, 11.2)]
        .map(|(batch, seconds)| {
            format!(
                "r{batch},GPT,gpt,48,6144,64,51200,2048,A100-80GB-SXM,80,8,8,1,1,{batch},4,fp16,\
                 none,none,{seconds},ok\n"
            )
        })
        .concat();
    folder.write("runs.csv", (header.to_owned() + &rows).as_bytes());
    let finished = folder.run(&["plan", "calibrate", "runs.csv", "--out", "constants"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let plan = ["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb", "--json"];
    let usual = folder.json(&plan)["step_seconds"].as_f64().expect("a number");
    let own = folder.json(&[&plan[..], &["--calibration", "constants/a100.toml"]].concat());
    let own = own["step_seconds"].as_f64().expect("a number");
    assert!(own > 1.02 * usual, "{own} {usual}");
    folder.write("bad.toml", b"name = \"a100\"\n");
    let error = refusal(&folder, &[&plan[..], &["--calibration", "bad.toml"]].concat());
    assert!(error.contains("--calibration bad.toml") && error.contains("; try "), "{error}");
}

#[test]
fn published_runs_are_predicted_or_skipped_with_a_reason() {
    let folder = Folder::new();
    // Rows of Table 5 of arXiv:2205.05198, and two that cannot be predicted.
    let text = "\
id,model,arch,layers,hidden,heads,vocab,seq,gpu,gpu_mem_gb,gpus,tp,pp,vpp,dp,sp,gbs,mbs,precision,\
recompute,schedule,step_time_s,status
a,GPT 22B,gpt,48,6144,64,51200,2048,A100-80GB-SXM,80,8,8,1,1,1,0,4,4,fp16,full,none,1.42,ok
b,GPT 22B,gpt,48,6144,64,51200,2048,A100-80GB-SXM,80,8,8,1,1,1,1,4,4,fp16,selective,none,1.10,ok
c,GPT 175B,gpt,96,12288,96,51200,2048,A100-80GB-SXM,80,64,8,8,3,1,1,64,1,fp16,selective,\
1f1b-interleaved,13.75,ok
d,GPT 22B,gpt,48,6144,64,51200,2048,Abacus,80,8,8,1,1,1,1,4,4,fp16,selective,none,1.10,ok
e,GPT 22B,gpt,48,6144,,51200,2048,A100-80GB-SXM,80,8,8,1,1,1,1,4,4,fp16,selective,none,1.10,ok
";
    folder.write("runs.csv", text.as_bytes());
    let scores = folder.json(&["plan", "validate", "runs.csv", "--json"]);
    let score = &scores[0];
    let names = "file rows rows_predicted rows_skipped step_time_mape step_time_median_error \
        step_time_worst memory_mape memory_median_error oom_accuracy regret_median";
    assert_keys(score, names);
    assert_eq!((&score["rows"], &score["rows_predicted"]), (&5.into(), &3.into()));
    assert_eq!(score["skipped"]["gpu = \"Abacus\" is not known"], 1);
    assert_eq!(score["skipped"]["heads is not published"], 1);
    assert!(score["step_time_mape"].as_f64().is_some_and(|error| error < 0.06), "{score}");
}

#[test]
fn a_given_layout_stays_fixed_and_useless_options_are_refused() {
    let folder = Folder::new();
    let plan = ["plan", "--model", "gpt3-13b", "--cluster", "64xa100-80gb"];
    let layout = ["--layout", "tensor=8,pipeline=8,zero=1", "--batch", "1024"];
    let report = folder.json(&[&plan[..], &layout, &["--what-if", "--json"]].concat());
    let upgrades = report["upgrades"].as_array().expect("a list");
    // The price does not change the time, and a layout of 64 devices does not fit 128.
    let price = upgrades.iter().find(|upgrade| upgrade["what"] == "1.5x the price");
    assert_eq!(price.expect("it is listed")["step_seconds"], report["step_seconds"]);
    assert!(!upgrades.iter().any(|upgrade| upgrade["what"] == "2x the devices"));
    let error = refusal(&folder, &[&plan[..], &layout, &["--scaling"]].concat());
    assert!(error.contains("try without --layout"), "{error}");

    let error = refusal(&folder, &["plan", "--preset", "tiny", "--html", "x.html"]);
    assert!(error.contains("--html needs --cluster; try --cluster"), "{error}");
    let odd = ["plan", "--model", "gpt2", "--cluster", "67xa100-80gb", "--batch", "8"];
    let error = refusal(&folder, &odd);
    assert!(
        error.contains("no layout of gpt2 divides a global batch of 8 among 67 devices"),
        "{error}"
    );
    let other = ["--calibration", "h100.toml"];
    let constants = include_str!("../../../planner/calibrations/h100.toml");
    folder.write("h100.toml", constants.as_bytes());
    let error = refusal(&folder, &[&plan[..], &other].concat());
    assert!(
        error.contains("is for h100") && error.contains("try the calibration of a100"),
        "{error}"
    );
    let wrong = constants.replace("matrix_share = ", "matrix_share = -");
    folder.write("h100.toml", wrong.as_bytes());
    let error = refusal(&folder, &[&plan[..], &other].concat());
    assert!(error.contains("matrix_share = -") && error.contains("must be from"), "{error}");
}

#[test]
fn a_plan_reads_the_config_of_a_hugging_face_model() {
    let folder = Folder::new();
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "tie_word_embeddings": true, "vocab_size": 128256,
        "attention_bias": false, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "eos_token_id": [1]}"#;
    folder.write("config.json", config.as_bytes());
    let plan = ["plan", "--cluster", "8xh100", "--json", "--model"];
    let report = folder.json(&[&plan[..], &["config.json"]].concat());
    assert_eq!(report["num_params"], 1_235_814_400);
    assert_eq!(report["context"], 8192);
    let long = folder.json(&[&plan[..], &["config.json", "--context", "16384"]].concat());
    assert_eq!(long["context"], 16_384);
    folder.write("config.json", config.replace("\"llama\"", "\"mamba\"").as_bytes());
    let error = refusal(&folder, &[&plan[..], &["config.json"]].concat());
    assert!(error.contains("config.json: model_type = \"mamba\" is not read"), "{error}");
    folder.write("config.json", config.replace("bias\": false", "bias\": true").as_bytes());
    let error = refusal(&folder, &[&plan[..], &["config.json"]].concat());
    assert!(error.contains("attention_bias = true differs from llama's"), "{error}");
}

#[test]
fn small_runs_have_amounts_above_zero() {
    let folder = Folder::new();
    let plan = ["plan", "--preset", "tiny", "--cluster", "1xa100-80gb", "--tokens", "1000"];
    let text = folder.succeed(&plan).stdout;
    for amount in
        ["2 layers of 32: 43.2 k parameters on", "\ndata           1.00 k tokens, 2.00 kB\n"]
    {
        assert!(text.contains(amount), "{amount:?} not in {text}");
    }
    for none in [" 0 GPU hours", "$0 ", " 0.00 ", " 0 tokens", " 0 G", "0.000000"] {
        assert!(!text.contains(none), "{none:?} in {text}");
    }
}

#[test]
fn memory_has_a_reserve_and_unknown_devices_may_be_described() {
    let folder = Folder::new();
    let plan = ["plan", "--model", "gpt3-13b", "--cluster", "16xa100-80gb", "--json"];
    let memory = |more: &[&str]| {
        let memory = &folder.json(&[&plan[..], more].concat())["memory"];
        ["needed_bytes", "reserve_bytes", "device_bytes"]
            .map(|name| memory[name].as_u64().expect("a number"))
    };
    for (percent, more) in [(6, &[][..]), (30, &["--reserve", "30"])] {
        let [needed, reserve, device] = memory(more);
        assert!((device / 100 * percent).abs_diff(reserve) < 100, "{reserve} of {device}");
        assert!(needed + reserve <= device, "{needed} {reserve} {device}");
    }
    let error = refusal(&folder, &[&plan[..], &["--reserve", "100"]].concat());
    assert!(error.contains("--reserve 100 is not from 0 to below 100; try 6"), "{error}");
    let error = refusal(&folder, &["plan", "--model", "gpt2", "--cluster", "8xrtx9090"]);
    assert!(error.contains("a cluster file (TOML) with a similar device"), "{error}");
}

/// Plan of a published run (Llama 3, 2024, Table 4), which almost fills the memory of its devices.
fn llama_3_405b(zero: &str) -> String {
    let layout = format!("tp=8,pp=16,dp=128,vpp=4,zero={zero},sp=true");
    let cluster = ["plan", "--model", "llama3-405b", "--cluster", "16384xh100", "--batch", "2048"];
    Folder::new().succeed(&[&cluster[..], &["--layout", &layout]].concat()).stdout
}

#[test]
fn a_given_layout_that_uses_the_reserve_is_priced_with_a_warning() {
    let warning = "\nwarning: this layout uses the reserve; ";
    let text = llama_3_405b("2");
    assert!(text.contains(warning), "{text}");
    // Whole weights are 6 of the 76 GiB: without them the reserve stays free.
    let text = llama_3_405b("3");
    assert!(text.contains(" GiB (6.00 %) of it in reserve\n") && !text.contains(warning), "{text}");
}

#[test]
fn rounding_errors_are_no_part_of_a_step() {
    let text = llama_3_405b("2");
    let launches = text.lines().find(|line| line.starts_with("  kernel launches ")).expect("a row");
    let columns: Vec<&str> = launches.split_whitespace().skip(2).collect();
    assert_eq!(columns, ["0", "s", "0", "%"], "{text}");
}
