"""Pipelines to put together with one's own."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Pipeline, pipeline

from zoo.integrations.kedro.nodes import evaluate_node, predict_node, report_node, split_node, train_node

_TRAINING = "params:training"


def anomaly_detection(*, namespace: str | None = None, **options: Any) -> Pipeline:
    """Anomaly detection with DevNet, from a labelled table to a report and the answers on new rows.

    ========  ===================================================  =============================================
    node      inputs                                               outputs
    ========  ===================================================  =============================================
    split     table, params:training                               training_rows, evaluation_rows
    train     training_rows, evaluation_rows, params:training      trained_model
    evaluate  trained_model, evaluation_rows                       metrics, scores
    report    trained_model, metrics, scores                       report, thresholds, score_plot, precision_recall_plot
    predict   trained_model, new_rows                              predictions
    ========  ===================================================  =============================================

    Args:
        namespace: begins the names of all datasets, parameters and nodes: ``thyroid.table``,
            ``params:thyroid.training``.
        options: of the training, such as ``parallel="ddp"``; ``params:training`` overrules them.
    """
    # To start ranks takes longer than to score a table.
    alone: dict[str, Any] = {"parallel": "single", "nproc": None, "tp": None, "engine_config": None}
    nodes = [
        split_node(parameters=_TRAINING, **options),
        train_node("devnet", evaluation="evaluation_rows", parameters=_TRAINING, **options),
        evaluate_node(**alone),
        report_node(
            outputs={
                "report.md": "report",
                "thresholds.csv": "thresholds",
                "scores.png": "score_plot",
                "precision_recall.png": "precision_recall_plot",
            }
        ),
        predict_node(**alone),
    ]
    return pipeline(nodes, namespace=namespace)
