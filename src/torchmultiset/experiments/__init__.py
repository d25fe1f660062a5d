"""Experiments: tables and a figure as data, the paper's and more, and what runs them, skips what is done, and fans out.

::

    paper       the tables, number by number
    beyond      tables that the paper does not have
    scales      smoke, small, paper: on which data, for how long
    cells       the two together: a run config and the paper's numbers for each cell
    data        data sets, made once before the cells begin
    work        one cell, from its config to its record
    worker      the process that does it
    engines     where such processes run: here, or on Ray
    grid        all cells: what is done, what is to be run, how it goes
"""
