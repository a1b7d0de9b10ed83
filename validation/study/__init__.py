"""Scores commsim against what was published: NCCL logs, training steps, memory figures. Not part of the package.

A log: `index` reads its row, `machines` and `cases` make a `Case` of it, `log` reads its curve, `system` predicts it,
`validate` scores it in the modes of `modes`, whose fits are those of `commsim calibrate`; `reasons` says why it is off,
`record` and `residuals` keep the figures. A training step: `training_rows` reads it with the facts of its publication,
`training_fit` fits, `training` scores. `command` is what `commsim validate` calls; `collectives_report`,
`training_report` and `pages` show it.
"""
