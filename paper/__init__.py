"""The paper's tables and figure, and tables beyond it, as data for `torchmultiset.pipeline.sweep`.

::

    tables      the paper's tables, number by number
    beyond      tables that the paper does not have
    scales      smoke, small, full, paper: data, epochs and seeds
    cells       tables and a scale together: a run config, and the paper's numbers, for each cell
    data        data sets, built before the first run
    keep        records of finished runs
    records     reading of these records
    summary     records in tables beside the paper's numbers; blocks, gallery, figures, markdown and report show them

``python -m paper run`` trains missing cells, ``python -m paper report`` writes docs/results/; `make paper` does both.
"""
